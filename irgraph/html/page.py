"""One HTML file that holds everything it shows: a template, a style, scripts, and data as JSON.

What a report shows is one value of plain records (``sections``), kept in the file as a block of
JSON; scripts of the package draw it. Names that come from models and traces are therefore never
markup: JSON cannot end the block, since ``<`` is escaped in it, and scripts set text, not HTML. A
content security policy allows the package's own scripts alone, by their hashes, and no request.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from string import Template
from typing import Any

import msgspec

SCRIPTS = (
    "base", "colours", "table", "figures", "slices", "draw", "lanes", "steer", "search", "charts",
    "scatter", "main",
)  # fmt: skip
"""The scripts, in the order in which they need each other."""

_ESCAPED = {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


class Page(msgspec.Struct, frozen=True):
    """What a report shows.

    Attributes:
        title: what it is about: the model or the traces.
        about: one line below the title.
        sections: in order, as ``irgraph.html.sections`` makes them.
        command: the command line that made it, ``""`` where none did.
        versions: name and version of what it was made with.
    """

    title: str
    about: str
    sections: Sequence[Mapping[str, Any]]
    command: str = ""
    versions: Mapping[str, str] = {}


def page_html(page: Page) -> str:
    """Return a page as the text of an HTML file (UTF-8) that needs no other file."""
    style = asset("uplot/uPlot.min.css") + asset("page.css")
    library, script = asset("uplot/uPlot.iife.min.js"), _script()
    return Template(asset("page.html")).substitute(
        policy=_policy(library, script),
        style=style,
        data=island(msgspec.to_builtins(page)),
        library=library,
        script=script,
    )


def island(value: Any) -> str:  # noqa: ANN401  (whatever JSON can hold)
    """Return JSON that cannot end the block of a page that holds it; NaN becomes ``null``."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # half a character, which JSON can only spell
        text = json.dumps(value)
    for char, code in _ESCAPED.items():
        text = text.replace(char, code)
    return text


@cache
def asset(name: str) -> str:
    """Return the text of a file of the package's folder ``assets``."""
    return (resources.files("irgraph.html") / "assets" / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    parts = "\n".join(asset(f"js/{name}.js") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();'


def _policy(*scripts: str) -> str:
    """Return a content security policy: these scripts, styles in the file, and no request."""
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:"


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
