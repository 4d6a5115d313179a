"""A small interpreter of TextMate grammars: enough for those that docs/editors ships."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any


def scopes(grammar: dict[str, Any], text: str) -> list[str]:
    """Return the scope of every character, ``""`` where the grammar says nothing."""
    found = [""] * len(text)
    start = 0
    for line in text.splitlines(keepends=True):
        for begin, end, scope in _spans(grammar["patterns"], line.rstrip("\n")):
            found[start + begin : start + end] = [scope] * (end - begin)
        start += len(line)
    return found


def _spans(patterns: list[dict[str, Any]], line: str) -> Iterator[tuple[int, int, str]]:
    """Yield what patterns find in a line: the earliest first, then the first of the list."""
    at = 0
    while at < len(line):
        tried = [
            (match.start(), order, match, pattern)
            for order, pattern in enumerate(patterns)
            if (match := re.compile(pattern.get("match") or pattern["begin"]).search(line, at))
        ]
        if not tried:
            return
        _, _, match, pattern = min(tried, key=lambda one: one[:2])
        end = match.end()
        if "end" in pattern:
            end = _closed(pattern, line, end)
        yield match.start(), end, pattern.get("name", "")
        for number, capture in pattern.get("captures", {}).items():
            yield match.start(int(number)), match.end(int(number)), capture["name"]
        at = max(end, match.start() + 1)


def _closed(pattern: dict[str, Any], line: str, at: int) -> int:
    """Return where a block ends that began before ``at``; what it holds is passed over."""
    while True:
        end = re.compile(pattern["end"]).search(line, at)
        assert end is not None
        inner = [re.compile(p["match"]).search(line, at) for p in pattern.get("patterns", ())]
        before = [match for match in inner if match and match.start() < end.start()]
        if not before:
            return end.end()
        at = min(match.end() for match in before)
