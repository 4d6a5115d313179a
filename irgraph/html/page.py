"""Self-contained HTML file of a report: a template, a style, scripts, and data as JSON.

The content of a report is one value of plain records (``sections``). Its texts and tables are HTML
(``static``); everything but the rows of tables is also in the file as a block of JSON, from which
the package's scripts draw the rest. Names from models and traces are never markup: they are escaped
in HTML, JSON cannot end the block, since ``<`` is escaped in it, and scripts set text, not HTML. A
content security policy allows only the package's scripts, by their hashes, and no request.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from string import Template
from typing import Any

import msgspec

from irgraph.html.static import StaticPage
from irgraph.html.values import visible_text

SCRIPTS = (
    "base", "colours", "table", "figures", "slices", "draw", "lanes", "steer", "search", "charts",
    "scatter", "main",
)  # fmt: skip
"""The scripts, in the order in which they need each other."""

_ESCAPED = {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


class Page(msgspec.Struct, frozen=True):
    """Content of a report.

    Attributes:
        title: subject of the report: the model or the traces.
        about: one line below the title.
        sections: sections in order, built by ``irgraph.html.sections``.
        command: the command line that wrote it, ``""`` if none did.
        versions: versions of the programs that wrote it, by name.
    """

    title: str
    about: str
    sections: Sequence[Mapping[str, Any]]
    command: str = ""
    versions: Mapping[str, str] = {}


def page_html(page: Page) -> str:
    """Return a page as the text of an HTML file (UTF-8) that needs no other file."""
    style = asset("uplot/uPlot.min.css") + asset("page.css")
    static = StaticPage()
    bodies, specs = [], []
    for section in page.sections:
        body, spec = static.section(section)
        bodies.append(body)
        specs.append(spec)
    library, script = asset("uplot/uPlot.iife.min.js"), _script()
    return Template(asset("page.html")).substitute(
        policy=_policy(library, script),
        style=style,
        title=escape(visible_text(page.title)),
        about=escape(visible_text(page.about)),
        body="\n".join(bodies),
        command=escape(visible_text(page.command)),
        versions=escape(visible_text(versions_text(page.versions))),
        data=island(msgspec.to_builtins(msgspec.structs.replace(page, sections=specs))),
        library=library,
        script=script,
    )


def versions_text(versions: Mapping[str, str]) -> str:
    """Return the names and versions of programs in one line."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def island(value: Any) -> str:  # noqa: ANN401  (any JSON value)
    """Return JSON that cannot end the block of a page that holds it; NaN becomes ``null``."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # a lone surrogate, which must be escaped in JSON
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
