"""The parts of a page that are HTML: headings, texts, notes, figures and tables.

They are the report of a reader without scripts. Scripts replace them by the same parts with
controls and drawings, but move the tables, whose rows are in the file only once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from irgraph.html.values import cell_text, time_text, visible_text

Spec = Mapping[str, Any]

DRAWINGS = ("slices", "areas", "roof", "scatter")
"""Sections that only scripts draw."""

DRAWING_NOTE = '<p class="quiet">A drawing, which needs scripts.</p>'


class StaticPage:
    """The HTML of a page's sections, and the records that its scripts need besides.

    Attributes:
        tables: number of tables so far; each has its number in both.
    """

    def __init__(self) -> None:
        self.tables = 0

    def section(self, spec: Spec) -> tuple[str, Spec]:
        """Return a section as HTML, and its record without the rows of its tables."""
        body, record = self._part(spec)
        title = spec.get("title")
        if not title:
            return body, record
        about = spec.get("text")
        head = f"<h2>{_text(title)}</h2>" + (
            f'<p class="about">{_text(about)}</p>' if about else ""
        )
        return f"<section>{head}{body}</section>", record

    def _part(self, spec: Spec) -> tuple[str, Spec]:
        kind = spec["type"]
        if kind == "table":
            return self._table(spec)
        if kind == "tabs":
            return self._tabs(spec)
        return (DRAWING_NOTE if kind in DRAWINGS else _PARTS[kind](spec)), spec

    def _table(self, spec: Spec) -> tuple[str, Spec]:
        number, self.tables = self.tables, self.tables + 1
        columns = spec["columns"]
        heads = "".join(
            f'<th scope="col"{_class(column["kind"], 0)}>{_text(column["name"])}</th>'
            for column in columns
        )
        kinds = [column["kind"] for column in columns]
        rows = "".join(f"<tr>{_cells(row, kinds)}</tr>" for row in spec["rows"])
        caption = f'<caption class="unseen">{_text(spec["title"])}</caption>'
        html = (
            f'<table data-number="{number}">{caption}<thead><tr>{heads}</tr></thead>'
            f"<tbody>{rows}</tbody></table>"
        )
        record = {key: value for key, value in spec.items() if key != "rows"}
        return html, {**record, "number": number}

    def _tabs(self, spec: Spec) -> tuple[str, Spec]:
        parts, tabs = [], []
        for tab in spec["tabs"]:
            body, record = self._part(tab["section"])
            parts.append(f"<h3>{_text(tab['label'])}</h3>{body}")
            tabs.append({**tab, "section": record})
        return "".join(parts), {**spec, "tabs": tabs}


def _cells(row: Sequence[Any], kinds: Sequence[str]) -> str:
    return "".join(map(_cell, row, kinds))


def _cell(value: Any, kind: str) -> str:  # noqa: ANN401  (any field of a record)
    """Return a cell; its value is in an attribute unless it is its text."""
    text = cell_text(value, kind)
    if text == value:
        return f"<td{_class(kind, value)}>{escape(text)}</td>"
    try:
        exact = json.dumps(value, allow_nan=False)
    except ValueError:
        exact = "null"
    return f'<td{_class(kind, value)} data-value="{escape(exact)}">{escape(text)}</td>'


def _class(kind: str, value: Any) -> str:  # noqa: ANN401  (any field of a record)
    if kind == "change" and isinstance(value, (int, float)) and value:
        return f' class="number {"worse" if value > 0 else "better"}"'
    return ' class="name"' if kind == "text" else ' class="number"'


def _text(value: object) -> str:
    return escape(visible_text(value))


def _headline(spec: Spec) -> str:
    rows = [
        (number["label"], f"{number['value']} {number.get('detail') or ''}".strip())
        for number in spec["numbers"]
    ]
    span = spec["span"] or {}
    if span.get("low") is not None and span.get("high") is not None:
        label = f"90 % interval {spec['of']}".strip()
        rows.append((label, f"{time_text(span['low'])} to {time_text(span['high'])}"))
    rows += [(name, cell_text(share, "share")) for name, share in spec["provenance"]]
    rows += [
        (name, f"{time_text(time, 3)}, {cell_text(share, 'share')} of the critical path")
        for name, time, share in spec["longest"]
    ]
    return _rows(rows)


def _notes(spec: Spec) -> str:
    kind = "notes warning" if spec["warning"] else "notes"
    items = "".join(f"<li>{_text(line)}</li>" for line in spec["lines"])
    return f'<ul class="{kind}">{items}</ul>' if items else ""


def _facts(spec: Spec) -> str:
    return _rows(spec["rows"])


def _rows(rows: Sequence[Sequence[str]]) -> str:
    lines = "".join(
        f'<tr><th scope="row">{_text(label)}</th><td class="name">{_text(text)}</td></tr>'
        for label, text in rows
    )
    return f'<table class="facts"><tbody>{lines}</tbody></table>'


def _listing(spec: Spec) -> str:
    return f'<div class="command"><pre>{_text(spec["code"])}</pre></div>'


_PARTS: dict[str, Callable[[Spec], str]] = {
    "headline": _headline,
    "notes": _notes,
    "facts": _facts,
    "listing": _listing,
}
"""HTML of sections without tables, by type."""
