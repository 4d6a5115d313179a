"""Sets of times as sorted, disjoint intervals in nanoseconds."""

from __future__ import annotations

import numpy as np

from irgraph.capture.kineto.reading.trace import Integers


def union(starts: Integers, ends: Integers) -> Integers:
    """Return the union of intervals, as rows of (start, end)."""
    is_positive = ends > starts
    order = np.argsort(starts[is_positive], kind="stable")
    sorted_starts, sorted_ends = starts[is_positive][order], ends[is_positive][order]
    if not len(sorted_starts):
        return np.zeros((0, 2), "i8")
    latest_end = np.maximum.accumulate(sorted_ends)
    is_first = np.concatenate([[True], sorted_starts[1:] > latest_end[:-1]])
    is_last = np.concatenate([is_first[1:], [True]])
    return np.stack([sorted_starts[is_first], latest_end[is_last]], axis=1)


def length(intervals: Integers) -> int:
    """Return the nanoseconds that intervals cover."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def intersection(a: Integers, b: Integers) -> Integers:
    """Return the intersection of two sets of intervals."""
    points = np.concatenate([a.ravel(), b.ravel()])
    change = np.tile([1, -1], len(points) // 2)
    # at equal points ends sort before starts, so that touching intervals do not overlap
    order = np.lexsort((change, points))
    is_covered_twice = np.cumsum(change[order]) == 2
    pairs = np.stack(
        [points[order][:-1][is_covered_twice[:-1]], points[order][1:][is_covered_twice[:-1]]],
        axis=1,
    )
    return pairs[pairs[:, 1] > pairs[:, 0]]


def complement(intervals: Integers, start: int, end: int) -> Integers:
    """Return the complement of intervals between ``start`` and ``end``."""
    borders = np.concatenate([[start], np.clip(intervals, start, end).ravel(), [end]])
    pairs = borders.reshape(-1, 2)
    return pairs[pairs[:, 1] > pairs[:, 0]]
