"""Reads a report as a parser of HTML does."""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from typing import Any


class Read(HTMLParser):
    """The tags of a file, with their attributes, and the JSON that it holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.links: list[str] = []
        self.text = ""
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self._inside = dict(attrs).get("id") == "data"
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    @property
    def data(self) -> dict[str, Any]:
        """What the report shows."""
        found: dict[str, Any] = json.loads(self.text)
        return found
