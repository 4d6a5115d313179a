"""Reads the text of scripts and pipelines; errors show line, column, caret and a near word."""

from __future__ import annotations

from lark.exceptions import UnexpectedInput

import grammars
from irgraph.language.reader import Reader
from irgraph.language.script import Script
from irgraph.text.syntax import syntax_error


def parse_script(text: str, source: str = "script") -> Script:
    """Return the script of a text; raise ``IrgraphError`` (exit code 4) where it is none."""
    return _read(text, source, "start")


def parse_pipeline(text: str, source: str = "pipeline") -> Script:
    """Return the script that applies passes in order: ``fuse-embedding(least=4), tidy``."""
    return _read(text, source, "pipeline")


def _read(text: str, source: str, start: str) -> Script:
    try:
        tree = grammars.load("transform", start).parse(text)
    except UnexpectedInput as error:
        raise syntax_error(error, text, source) from None
    script: Script = Reader(text, source, start).read(tree)
    return script
