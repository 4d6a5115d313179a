"""Reads the text of scripts and pipelines; errors show line, column, caret and a suggestion."""

from __future__ import annotations

from lark.exceptions import UnexpectedInput

import grammars
from irgraph.diagnostics import IrgraphError
from irgraph.language import suggestions
from irgraph.language.incomplete_statements import completion_hint
from irgraph.language.reader import Reader
from irgraph.language.script import Script
from irgraph.text.syntax import is_truncated, syntax_error


def parse_script(text: str, source: str = "script") -> Script:
    """Return the script of a text; raise ``IrgraphError`` (exit code 4) if it is not valid."""
    return _read(text, source, "start")


def parse_pipeline(text: str, source: str = "pipeline") -> Script:
    """Return the script that applies passes in order: ``fuse-embedding(least=4), tidy``."""
    return _read(text, source, "pipeline")


def _read(text: str, source: str, start: str) -> Script:
    try:
        tree = grammars.load("transform", start).parse(text)
    except UnexpectedInput as error:
        raise _parse_error(error, text, source) from None
    script: Script = Reader(text, source, start).read(tree)
    return script


def _parse_error(error: UnexpectedInput, text: str, source: str) -> IrgraphError:
    """Return the syntax error of a text, with a suggestion."""
    completion = completion_hint(error)
    if not is_truncated(error):
        hint = completion or suggestions.habit_hint(text, error.pos_in_stream or 0)
        return syntax_error(error, text, source, hint)
    open_braces = suggestions.unclosed_brace_notes(text, source)
    hint = (
        "close it with '}'"
        if open_braces
        else completion or suggestions.habit_hint(text.rstrip(), len(text.rstrip()))
    )
    return syntax_error(error, text, source, hint, open_braces)
