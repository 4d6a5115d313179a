"""Records the nearest miss of a pattern that matches nothing, and the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Reason: TypeAlias = str | Callable[[], str]
"""Why something failed: a text, or a function that returns it, as few reasons are ever shown."""


def text_of(reason: Reason) -> str:
    """Return the text of a reason."""
    return reason if isinstance(reason, str) else reason()


class Misses:
    """Keeps the nearest miss of one statement, and how many ops it looked at."""

    def __init__(self) -> None:
        self.tried = 0
        self.depth = -1.0
        self.position = -1
        self.reason = ""

    def note(self, depth: float, position: int, reason: Reason) -> None:
        """Record a failed attempt: how much of the pattern matched, at which op, and why not more.

        The first of equally near ones is kept.
        """
        if depth > self.depth:
            self.depth = depth
            self.position = position
            self.reason = text_of(reason)
