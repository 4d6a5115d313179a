"""Hits of a least-recently-used cache by Che's approximation (Che, Tung and Wang, IEEE JSAC 2002).

A row hits if it was used within the last t accesses. The characteristic time t is the number of
accesses that read as many different rows as the cache holds. Here the cache starts empty: the first
t accesses hit any row that was accessed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.lookups.popularity import (
    Distribution,
    Floats,
    RowGroups,
    Uniform,
    even_rows,
    rows_of,
)
from irgraph.ir.points.point_values import PointValues, ScalarOnlyError, as_array, point_count

Key: TypeAlias = tuple[Distribution, bytes, bytes, int]

CHUNK = 1024
"""Points that are computed together, to bound memory."""

STEPS = 256
"""Number of points, logarithmically spaced, at which the bytes read by a run are computed."""


class Reads(Struct, frozen=True):
    """Lookups in one table: their distribution, the table's rows, their number, bytes of a row."""

    indices: Distribution
    rows: int
    lookups: int
    row: int


def lru_misses(reads: Sequence[Reads], capacity: float, concurrency: float = 1.0) -> list[float]:
    """Return the expected lookups of each table that miss the cache.

    Args:
        reads: the tables' lookups, all in the same order of bags.
        capacity: bytes of the cache for rows.
        concurrency: number of tables that are read at the same time, from 1 to all of them; the
            tables that share the cache with a table are modelled as the mean of the others.
    """
    sizes = [number for r in reads for number in (r.rows, r.lookups)]
    points = point_count(*sizes, concurrency)
    uniform = all(isinstance(r.indices, Uniform) for r in reads)
    if not points:
        return list(_scalar_misses(tuple(reads), capacity, concurrency))
    if not uniform:
        raise ScalarOnlyError("lookups that are not uniform")
    runs = [_Run(r, points) for r in reads]
    concurrency_by_point = as_array(concurrency, points)
    parts = [
        _lru_misses(
            [run.part(start) for run in runs], capacity, concurrency_by_point[start : start + CHUNK]
        )
        for start in range(0, points, CHUNK)
    ]
    misses = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    return [PointValues(missed) for missed in misses]  # type: ignore[misc]


@lru_cache(maxsize=1024)
def _scalar_misses(
    reads: tuple[Reads, ...], capacity: float, concurrency: float
) -> tuple[float, ...]:
    """Return ``lru_misses`` at one point, cached: gradients of all tables read the same bags."""
    misses = _lru_misses([_Run(r, 1) for r in reads], capacity, as_array(concurrency, 1))
    return tuple([float(missed[0]) for missed in misses])


class _Run:
    """One table's lookups at many points.

    Attributes:
        rows, lookups: ``float64[points]``.
    """

    def __init__(self, reads: Reads, points: int) -> None:
        self.indices, self.row = reads.indices, reads.row
        self.rows, self.lookups = (as_array(n, points) for n in (reads.rows, reads.lookups))

    @property
    def key(self) -> Key:
        """Cache key of the run: all values that its results depend on."""
        return self.indices, self.rows.tobytes(), self.lookups.tobytes(), self.row

    @property
    def popularity(self) -> RowGroups:
        """Row groups of the table at every point, or at the only point."""
        if isinstance(self.indices, Uniform):
            return even_rows(self.rows)
        return rows_of(self.indices, int(self.rows[0]))

    def part(self, start: int) -> _Run:
        """Return the run at ``CHUNK`` of the points."""
        part = copy(self)
        part.rows, part.lookups = (
            self.rows[start : start + CHUNK],
            self.lookups[start : start + CHUNK],
        )
        return part


def _lru_misses(runs: Sequence[_Run], capacity: float, concurrency: Floats) -> list[Floats]:
    """Return ``lru_misses`` at some points, ``float64[points]`` each."""
    keys = tuple([run.key for run in runs])
    run_by_key = dict(zip(keys, runs, strict=True))
    max_lookups = np.maximum(np.max([run.lookups for run in run_by_key.values()], axis=0), 1.0)
    distinct_bytes = _distinct_bytes if len(max_lookups) > 1 else _distinct_bytes_at_point
    total_bytes = (_total_bytes if len(max_lookups) > 1 else _total_bytes_at_point)(
        keys, max_lookups.tobytes()
    )
    others = max(len(runs) - 1, 1)
    weight = np.minimum(np.maximum(concurrency - 1.0, 0.0), len(runs) - 1.0) / others
    share = _shares(max_lookups.tobytes())
    misses_by_key = {
        key: _misses(
            run,
            share,
            _HitCurve(distinct_bytes(*key, max_lookups.tobytes()), total_bytes, weight),
            capacity,
        )
        for key, run in run_by_key.items()
    }
    return [misses_by_key[key] for key in keys]


class _HitCurve(Struct, frozen=True):
    """Bytes in the cache after each share of the lookups; they never decrease.

    Attributes:
        own_bytes: bytes of one table's rows, ``float64[points, STEPS]``.
        total_bytes: bytes of all tables' rows.
        weight: share of the other tables' bytes that counts, ``float64[points]``.
    """

    own_bytes: Floats
    total_bytes: Floats
    weight: Floats

    def bytes_at(self, steps: NDArray[np.intp]) -> Floats:
        """Return the bytes at a step of each point."""
        positions = np.arange(len(steps)) * STEPS + steps
        table_bytes = self.own_bytes.take(positions)
        return np.asarray(
            table_bytes + self.weight * (self.total_bytes.take(positions) - table_bytes)
        )

    def last_within(self, capacity: float) -> NDArray[np.intp]:
        """Return the last step of each point that fits into the cache, -1 if none fits."""
        if len(self.own_bytes) == 1:
            return np.array([self._last_within(capacity)])
        last = np.full(len(self.own_bytes), -1)
        size = STEPS
        while size:
            candidate = np.minimum(last + size, STEPS - 1)
            last = np.where(self.bytes_at(candidate) <= capacity, candidate, last)
            size //= 2
        return last

    def _last_within(self, capacity: float) -> int:
        """Return the last step of a single point: Python is faster than numpy for one number."""
        table_bytes_at, total_bytes_at, weight = (
            self.own_bytes.item,
            self.total_bytes.item,
            self.weight.item(0),
        )
        last, size = -1, STEPS
        while size:
            candidate = min(last + size, STEPS - 1)
            table_bytes = table_bytes_at(candidate)
            if table_bytes + weight * (total_bytes_at(candidate) - table_bytes) <= capacity:
                last = candidate
            size //= 2
        return last


@lru_cache(maxsize=8)
def _shares(max_lookups: bytes) -> Floats:
    """Return shares of the lookups from ``1 / max_lookups`` to 1, ``float64[points, STEPS]``."""
    logs = np.log(1.0 / np.frombuffer(max_lookups))[:, None] * (
        1.0 - np.arange(STEPS) / (STEPS - 1)
    )
    return np.asarray(np.exp(logs))


def _compute_distinct_bytes(
    indices: Distribution, rows: bytes, lookups: bytes, row: int, max_lookups: bytes
) -> Floats:
    """Return the bytes of different rows in ``_shares`` of the lookups, ``[points, STEPS]``."""
    run = _Run(Reads(indices, 1, 1, row), 1)
    run.rows, run.lookups = np.frombuffer(rows), np.frombuffer(lookups)
    return row * run.popularity.distinct_count(_shares(max_lookups) * run.lookups[:, None])


_distinct_bytes_at_point = lru_cache(maxsize=1024)(_compute_distinct_bytes)
_distinct_bytes = lru_cache(maxsize=64)(_compute_distinct_bytes)


def _compute_total_bytes(keys: tuple[Key, ...], max_lookups: bytes) -> Floats:
    """Return the bytes of different rows of all runs."""
    distinct_bytes = _distinct_bytes if len(max_lookups) > 8 else _distinct_bytes_at_point
    first, *others = (distinct_bytes(*key, max_lookups) for key in keys)
    if not others:
        return first
    total = first.copy()
    for nbytes in others:
        total += nbytes
    return total


_total_bytes_at_point = lru_cache(maxsize=64)(_compute_total_bytes)
_total_bytes = lru_cache(maxsize=4)(_compute_total_bytes)


def _misses(run: _Run, share: Floats, curve: _HitCurve, capacity: float) -> Floats:
    """Return the misses of a run, ``curve`` being the cached bytes after each ``share`` of it."""
    popularity, lookups = run.popularity, run.lookups[:, None]
    last = curve.last_within(capacity)
    if last.min() == STEPS - 1:
        return np.asarray(popularity.distinct_count(lookups)[:, 0])
    # the share that fills the cache, interpolated between two steps by the logarithms of both
    steps = np.minimum(np.maximum(last, 0), STEPS - 2)
    points = np.arange(len(steps))
    low, high = (np.log(curve.bytes_at(steps + n))[:, None] for n in (0, 1))
    low_share, high_share = (np.log(share[points, steps + n])[:, None] for n in (0, 1))
    slope = (high_share - low_share) / np.where(high > low, high - low, 1.0)
    window = lookups * np.exp(np.minimum(low_share + slope * (np.log(capacity) - low), 0.0))
    distinct, hit_chance = popularity.coverage(window)
    misses = distinct + (lookups - window) * (1.0 - hit_chance)
    if (last < 0).any():
        misses = np.where(last[:, None] < 0, lookups, misses)
    if (last == STEPS - 1).any():
        misses = np.where(last[:, None] == STEPS - 1, popularity.distinct_count(lookups), misses)
    return np.asarray(misses[:, 0])
