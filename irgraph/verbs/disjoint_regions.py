"""Disjoint parts of a graph, with a test whether other parts overlap them."""

from __future__ import annotations

from bisect import bisect_right, insort

from irgraph.verbs.sequence import Extent

Mark = tuple[float, ...]
"""A position in a graph, as ``Extent.start`` and ``Extent.end``."""


class DisjointRegions:
    """Parts of a graph; overlapping parts are merged."""

    def __init__(self, *extents: Extent) -> None:
        self._parts: list[tuple[Mark, Mark]] = []
        for extent in extents:
            self.add(extent)

    def add(self, extent: Extent) -> None:
        """Add a part."""
        start, end = extent.start, extent.end
        while (i := self._overlap_index(start, end)) >= 0:
            first, last = self._parts.pop(i)
            start, end = min(start, first), max(end, last)
        insort(self._parts, (start, end))

    def meets(self, extent: Extent) -> bool:
        """Return whether a part has ops in common with these."""
        return self._overlap_index(extent.start, extent.end) >= 0

    def overlaps(self, other: DisjointRegions) -> bool:
        """Return whether parts of one have ops in common with parts of the other."""
        return any(self._overlap_index(*part) >= 0 for part in other._parts)

    def _overlap_index(self, start: Mark, end: Mark) -> int:
        """Return the index of the last part that overlaps one, -1 if there is none."""
        i = bisect_right(self._parts, end, key=_start) - 1
        return i if i >= 0 and self._parts[i][1] >= start else -1


def _start(part: tuple[Mark, Mark]) -> Mark:
    return part[0]
