"""Hits of a least-recently-used cache by Che's approximation (Che, Tung and Wang, IEEE JSAC 2002).

A row is found if it was used within the last t accesses, where t, the characteristic time, is how
many accesses bring as many different rows as the cache holds. Here the cache starts without a
row: the first t accesses find whatever came before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct

from costmodels.lookups.popularity import Distribution, Floats, rows_of

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
    kinds = list(dict.fromkeys(reads))
    most = max(max(r.lookups for r in kinds), 1)
    share = np.geomspace(1.0 / most, 1.0, STEPS)
    brought = {r: _brought(r, most) for r in kinds}
    every = sum((brought[r] for r in reads), np.zeros(STEPS))
    others = max(len(reads) - 1, 1)
    weight = min(max(together - 1.0, 0.0), len(reads) - 1.0) / others
    found = {r: _misses(r, share, brought[r] + weight * (every - brought[r]), capacity)
             for r in kinds}  # fmt: skip
    return [found[r] for r in reads]


@lru_cache(maxsize=1024)
def _brought(reads: Reads, most: int) -> Floats:
    """Return the bytes of different rows that shares of the lookups, from ``1 / most``, read."""
    share = np.geomspace(1.0 / most, 1.0, STEPS)
    return reads.row * rows_of(reads.indices, reads.rows).distinct(share * reads.lookups)


def _misses(reads: Reads, share: Floats, held: Floats, capacity: float) -> float:
    """Return the lookups that miss if shares of the run bring so many bytes to the cache."""
    popularity = rows_of(reads.indices, reads.rows)
    if held[-1] <= capacity:
        return float(popularity.distinct(reads.lookups))
    if capacity < held[0]:
        return float(reads.lookups)
    window = reads.lookups * float(np.exp(np.interp(np.log(capacity), np.log(held), np.log(share))))
    later = (reads.lookups - window) * (1.0 - float(popularity.repeated(window)))
    return float(popularity.distinct(window)) + later
