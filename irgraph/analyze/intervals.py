"""Sets of times as sorted, disjoint intervals in nanoseconds."""

from __future__ import annotations

import numpy as np

from irgraph.capture.kineto.reading.trace import Integers


def union(starts: Integers, ends: Integers) -> Integers:
    """Return the union of intervals, as rows of (start, end)."""
    keep = ends > starts
    order = np.argsort(starts[keep], kind="stable")
    begin, end = starts[keep][order], ends[keep][order]
    if not len(begin):
        return np.zeros((0, 2), "i8")
    reached = np.maximum.accumulate(end)
    first = np.concatenate([[True], begin[1:] > reached[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([begin[first], reached[last]], axis=1)


def length(stretches: Integers) -> int:
    """Return the nanoseconds that intervals cover."""
    return int((stretches[:, 1] - stretches[:, 0]).sum())


def intersection(a: Integers, b: Integers) -> Integers:
    """Return the intersection of two sets of intervals."""
    points = np.concatenate([a.ravel(), b.ravel()])
    change = np.tile([1, -1], len(points) // 2)
    order = np.lexsort((change, points))  # what ends at a point does so before what starts there
    both = np.cumsum(change[order]) == 2
    pairs = np.stack([points[order][:-1][both[:-1]], points[order][1:][both[:-1]]], axis=1)
    return pairs[pairs[:, 1] > pairs[:, 0]]


def complement(stretches: Integers, start: int, end: int) -> Integers:
    """Return the complement of intervals between ``start`` and ``end``."""
    borders = np.concatenate([[start], np.clip(stretches, start, end).ravel(), [end]])
    pairs = borders.reshape(-1, 2)
    return pairs[pairs[:, 1] > pairs[:, 0]]
