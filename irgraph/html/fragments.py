"""Tables for notebooks, as returned by ``_repr_html_``. Text is never markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = "text-align:left; vertical-align:top; padding:2px 12px 2px 2px"


def table_html(
    title: str, rows: Iterable[Sequence[str]], head: Sequence[str] = (), note: str = ""
) -> str:
    """Return rows of texts as a table with a title; their first cells are headings.

    Args:
        title: title above the table.
        rows: cells of text.
        head: headings of the columns, if they have any.
        note: a line below.
    """
    names = "".join(f'<th style="{STYLE}">{escape(name)}</th>' for name in head)
    lines = [f"<tr>{names}</tr>"] if names else []
    for first, *values in rows:
        cells = "".join(f'<td style="{STYLE}">{escape(text)}</td>' for text in values)
        lines.append(f'<tr><th scope="row" style="{STYLE}">{escape(first)}</th>{cells}</tr>')
    below = f'<p style="opacity:0.75">{escape(note)}</p>' if note else ""
    return f"<div><b>{escape(title)}</b><table>{''.join(lines)}</table>{below}</div>"
