"""Reads a report as a parser of HTML does."""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from typing import Any

REPEATED = ("tr", "th", "td", "ul", "li")
"""Tags whose number depends on what a report shows."""


class Read(HTMLParser):
    """The tags of a file, with their attributes, and the records that it holds.

    Attributes:
        tags: number of each tag.
        links: addresses of the file.
        text: the block of JSON.
        tables: rows of each table with a number, as values.
        visible: all text outside scripts and styles.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.links: list[str] = []
        self.text = ""
        self.tables: dict[int, list[list[Any]]] = {}
        self.visible = ""
        self._element: tuple[str, dict[str, str | None]] = ("", {})
        self._number = -1
        self._cell: str | None = None
        self._value: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags[tag] += 1
        self._element = (tag, attributes)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag == "table":
            self._number = int(attributes.get("data-number") or -1)
            if self._number >= 0:
                self.tables[self._number] = []
        elif tag == "tr" and self._number >= 0:
            self.tables[self._number].append([])
        elif tag == "td":
            self._cell, self._value = "", attributes.get("data-value")

    def handle_data(self, data: str) -> None:
        tag, attributes = self._element
        if attributes.get("id") == "data":
            self.text += data
        elif tag not in ("script", "style"):
            self.visible += data
        if self._cell is not None:
            self._cell += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "td" and self._number >= 0:
            value = self._cell if self._value is None else json.loads(self._value)
            self.tables[self._number][-1].append(value)
        if tag == "td":
            self._cell = None
        if tag in ("script", "style"):
            self._element = ("", {})

    @property
    def markup(self) -> dict[str, int]:
        """Numbers of tags except of rows, cells and notes, which depend on the figures."""
        return {tag: n for tag, n in self.tags.items() if tag not in REPEATED}

    @property
    def data(self) -> dict[str, Any]:
        """What the report shows, with the rows of its tables."""
        result: dict[str, Any] = json.loads(self.text)
        for section in result["sections"]:
            self._add_rows(section)
        return result

    def _add_rows(self, section: dict[str, Any]) -> None:
        if section["type"] == "table":
            # the first row has the headings
            section["rows"] = self.tables[section.pop("number")][1:]
        for tab in section.get("tabs", ()):
            self._add_rows(tab["section"])
