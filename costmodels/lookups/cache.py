"""Hits of a least-recently-used cache by Che's approximation (Che, Tung and Wang, IEEE JSAC 2002).

A row is found if it was used within the last t accesses, where t, the characteristic time, is how
many accesses bring as many different rows as the cache holds. Here the cache starts without a
row: the first t accesses find whatever came before.
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
"""Points, evenly spaced by ratio, at which the bytes that a run has brought in are computed."""


class Reads(Struct, frozen=True):
    """Lookups of rows of one table: their distribution, how many, and a row's bytes."""

    indices: Distribution
    rows: int
    lookups: int
    row: int


def lru_misses(reads: Sequence[Reads], capacity: float, together: float = 1.0) -> list[float]:
    """Return the expected lookups of each table that the cache does not hold.

    Args:
        reads: the tables' lookups, all in the same order of bags.
        capacity: bytes that rows can take.
        together: how many of the tables are read at the same time, one by one to all of them; the
            others that share the cache with a table are taken as the mean of the rest.
    """
    sizes = [number for r in reads for number in (r.rows, r.lookups)]
    points = point_count(*sizes, together)
    uniform = all(isinstance(r.indices, Uniform) for r in reads)
    if not points:
        return list(_missed(tuple(reads), capacity, together))
    if not uniform:
        raise ScalarOnlyError("lookups that are not uniform")
    runs = [_Run(r, points) for r in reads]
    beside = as_array(together, points)
    parts = [
        _lru_misses([run.part(at) for run in runs], capacity, beside[at : at + CHUNK])
        for at in range(0, points, CHUNK)
    ]
    found = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    return [PointValues(missed) for missed in found]  # type: ignore[misc]


@lru_cache(maxsize=1024)
def _missed(reads: tuple[Reads, ...], capacity: float, together: float) -> tuple[float, ...]:
    """Return ``lru_misses`` of plain numbers: gradients of all tables read the same bags."""
    found = _lru_misses([_Run(r, 1) for r in reads], capacity, as_array(together, 1))
    return tuple([float(missed[0]) for missed in found])


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
        """What the run depends on."""
        return self.indices, self.rows.tobytes(), self.lookups.tobytes(), self.row

    @property
    def popularity(self) -> RowGroups:
        """The rows of the table at every point, or its only ones."""
        if isinstance(self.indices, Uniform):
            return even_rows(self.rows)
        return rows_of(self.indices, int(self.rows[0]))

    def part(self, at: int) -> _Run:
        """Return the run at ``CHUNK`` of the points."""
        found = copy(self)
        found.rows, found.lookups = self.rows[at : at + CHUNK], self.lookups[at : at + CHUNK]
        return found


def _lru_misses(runs: Sequence[_Run], capacity: float, together: Floats) -> list[Floats]:
    """Return ``lru_misses`` at some points, ``float64[points]`` each."""
    kinds = {run.key: run for run in runs}
    most = np.maximum(np.max([run.lookups for run in kinds.values()], axis=0), 1.0)
    keys = tuple(run.key for run in runs)
    remember = _brought if len(most) > 1 else _brought_alone
    every = (_every if len(most) > 1 else _every_alone)(keys, most.tobytes())
    others = max(len(runs) - 1, 1)
    weight = np.minimum(np.maximum(together - 1.0, 0.0), len(runs) - 1.0) / others
    share = _shares(most.tobytes())
    found = {
        key: _misses(run, share, _HitCurve(remember(*key, most.tobytes()), every, weight), capacity)
        for key, run in kinds.items()
    }
    return [found[key] for key in keys]


class _HitCurve(Struct, frozen=True):
    """Bytes in the cache after each share of the lookups; they never become fewer.

    Attributes:
        own: of a table's rows, ``float64[points, STEPS]``.
        every: of all tables' rows.
        weight: the share of what others brought that counts, ``float64[points]``.
    """

    own: Floats
    every: Floats
    weight: Floats

    def at(self, steps: NDArray[np.intp]) -> Floats:
        """Return the bytes at a step of each point."""
        places = np.arange(len(steps)) * STEPS + steps
        own = self.own.take(places)
        return np.asarray(own + self.weight * (self.every.take(places) - own))

    def last_within(self, capacity: float) -> NDArray[np.intp]:
        """Return the last step of each point that the cache holds, -1 where it holds none."""
        if len(self.own) == 1:
            return np.array([self._last_within(capacity)])
        found = np.full(len(self.own), -1)
        size = STEPS
        while size:
            further = np.minimum(found + size, STEPS - 1)
            found = np.where(self.at(further) <= capacity, further, found)
            size //= 2
        return found

    def _last_within(self, capacity: float) -> int:
        """Return the same of one point: numpy takes longer for a number than Python."""
        own, every, weight = self.own.item, self.every.item, self.weight.item(0)
        found, size = -1, STEPS
        while size:
            further = min(found + size, STEPS - 1)
            mine = own(further)
            if mine + weight * (every(further) - mine) <= capacity:
                found = further
            size //= 2
        return found


@lru_cache(maxsize=8)
def _shares(most: bytes) -> Floats:
    """Return shares of the lookups from ``1 / most`` to 1, ``float64[points, STEPS]``."""
    logs = np.log(1.0 / np.frombuffer(most))[:, None] * (1.0 - np.arange(STEPS) / (STEPS - 1))
    return np.asarray(np.exp(logs))


def _bring(indices: Distribution, rows: bytes, lookups: bytes, row: int, most: bytes) -> Floats:
    """Return the bytes of different rows that ``_shares`` of lookups read, ``[points, STEPS]``."""
    run = _Run(Reads(indices, 1, 1, row), 1)
    run.rows, run.lookups = np.frombuffer(rows), np.frombuffer(lookups)
    return row * run.popularity.distinct(_shares(most) * run.lookups[:, None])


_brought_alone = lru_cache(maxsize=1024)(_bring)
_brought = lru_cache(maxsize=64)(_bring)


def _bring_all(keys: tuple[Key, ...], most: bytes) -> Floats:
    """Return the bytes of different rows of all runs."""
    points = len(most) // 8
    every = np.zeros((points, STEPS))
    for key in keys:
        every += (_brought if points > 1 else _brought_alone)(*key, most)
    return every


_every_alone = lru_cache(maxsize=64)(_bring_all)
_every = lru_cache(maxsize=4)(_bring_all)


def _misses(run: _Run, share: Floats, held: _HitCurve, capacity: float) -> Floats:
    """Return the lookups that miss if shares of the run bring so many bytes to the cache."""
    whole, lookups = run.popularity, run.lookups[:, None]
    last = held.last_within(capacity)
    # The share that brings what the cache holds, between two steps by the logarithms of both.
    at = np.minimum(np.maximum(last, 0), STEPS - 2)
    points = np.arange(len(at))
    low, high = (np.log(held.at(at + n))[:, None] for n in (0, 1))
    first, then = (np.log(share[points, at + n])[:, None] for n in (0, 1))
    rise = (then - first) / np.where(high > low, high - low, 1.0)
    window = lookups * np.exp(np.minimum(first + rise * (np.log(capacity) - low), 0.0))
    different, repeated = whole.seen(window)
    found = different + (lookups - window) * (1.0 - repeated)
    if (last < 0).any():
        found = np.where(last[:, None] < 0, lookups, found)
    if (last == STEPS - 1).any():
        found = np.where(last[:, None] == STEPS - 1, whole.distinct(lookups), found)
    return np.asarray(found[:, 0])
