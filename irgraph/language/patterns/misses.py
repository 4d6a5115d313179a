"""Records the nearest miss of a pattern that matches nothing, and the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Reason: TypeAlias = str | Callable[[], str]
"""The reason of a failure: a text, or a function that returns it, as few reasons are shown."""


def text_of(reason: Reason) -> str:
    """Return the text of a reason."""
    return reason if isinstance(reason, str) else reason()


class Misses:
    """The nearest miss of one statement, and the number of ops that it tried."""

    def __init__(self) -> None:
        self.tried_ops = 0
        self.depth = -1.0
        self.position = -1
        self.reason = ""

    def note(self, depth: float, position: int, reason: Reason) -> None:
        """Record a failed attempt if it is nearer than all before.

        ``depth`` is how much of the pattern matched, at the op ``position``.
        """
        if depth > self.depth:
            self.depth = depth
            self.position = position
            self.reason = text_of(reason)
