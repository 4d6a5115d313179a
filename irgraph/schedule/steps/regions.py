"""Regions: kernels that follow each other between two waits of the host, and their possible ends.

Each kernel starts after its launch and after the kernel before. So the last one ends when the
latest of several candidates does: a launch, followed by all kernels from there on without gaps. Few
of them are ever the latest: a launch delays nothing if the kernel before certainly still runs, and
if a launch certainly comes after the kernels before it, no earlier candidate can be the latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from irgraph.schedule.tasks import Floats, Ints

Flags = NDArray[np.bool_]


class Region(Struct, frozen=True):
    """Kernels of one stream, launched after one node of the host.

    Attributes:
        base: the node of the host before them.
        nodes: their nodes, one after the other.
        closing: the node of the host that waits for the last of them, -1 if that is another.
        first: index of its first candidate among those of all regions.
        kernels: the kernel that each node runs.
    """

    base: int
    nodes: tuple[int, ...]
    closing: int
    first: int
    kernels: tuple[int, ...]

    @property
    def candidates(self) -> int:
        """Number of events that may delay the end: launches, and the host if it waits for it."""
        return len(self.nodes) + (self.closing >= 0)

    @property
    def end(self) -> int:
        """The node that ends when the region does."""
        return self.closing if self.closing >= 0 else self.nodes[-1]


def candidates_alive(
    regions: Iterable[Region], launched: Floats, upper: Floats, lower: Floats
) -> Flags:
    """Return which candidates may be the latest of their region, in some of several batches.

    Args:
        regions: whose candidates are rows of the others.
        launched: time of each launch, less the gaps before it, ``float64[candidates, draws]``.
        upper: upper bounds of the kernels' durations in all steps of a batch,
            ``float64[kernels, batches, draws]``.
        lower: lower bounds of the same.

    Returns:
        ``bool[candidates, batches, draws]``; at least one of each region under each draw.
    """
    alive = np.ones((len(launched), *upper.shape[1:]), np.bool_)
    ordered = sorted(regions, key=lambda region: -region.candidates)
    group_size = max(1, MAX_NUMBERS // upper[0].size) if len(upper) else 1
    for first in range(0, len(ordered), group_size):
        _mark_alive(ordered[first : first + group_size], launched, upper, lower, alive)
    return alive


MAX_NUMBERS = 32_768
"""Maximum of regions times batches times draws in one pass: few enough for a cache."""


def _mark_alive(
    regions: Sequence[Region], launched: Floats, upper: Floats, lower: Floats, alive: Flags
) -> None:
    """Clear ``alive`` for candidates that cannot be the latest; regions come longest first."""
    first = np.array([region.first for region in regions])
    upper_ends = launched[first][:, None] + np.zeros(upper.shape[1:])
    lower_ends, cuts = upper_ends.copy(), []
    for index in range(1, regions[0].candidates):
        kernels = [region.kernels[index - 1] for region in regions if index < region.candidates]
        count = len(kernels)
        latest, earliest = upper_ends[:count], lower_ends[:count]
        row = launched[first[:count] + index][:, None]
        latest += upper[kernels]
        earliest += lower[kernels]
        cuts.append(latest < row)
        alive[first[:count] + index] = earliest < row
        np.maximum(latest, row, out=latest)
        np.maximum(earliest, row, out=earliest)
    is_superseded = np.zeros(upper_ends.shape, np.bool_)
    for index, cut in reversed(list(enumerate(cuts))):
        count = len(cut)
        is_superseded[:count] |= cut
        alive[first[:count] + index] &= ~is_superseded[:count]


def split_batches(order: Ints, batch_size: int) -> Sequence[Ints]:
    """Split numbers into parts of nearly equal length, of at most ``batch_size`` each."""
    return np.array_split(order, max(1, -(-len(order) // batch_size)))
