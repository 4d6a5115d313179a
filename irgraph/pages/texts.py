"""Interning of texts and facts that many slices share, by number."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class InternTable:
    """Distinct values by number, in the order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def __call__(self, value: Hashable) -> int:
        """Return the number of a value, a new one if it has none."""
        return self._numbers.setdefault(value, len(self._numbers))

    @property
    def values(self) -> list[Any]:
        """The values in the order of their numbers."""
        return list(self._numbers)
