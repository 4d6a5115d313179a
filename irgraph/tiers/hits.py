"""Contents of a cache of rows, and the lookups that are not read from a slower tier.

Least recently used: Che's approximation (Che, Tung and Wang, IEEE JSAC 2002). A row is cached if it
was looked up within the last T lookups; T is the number of lookups whose different rows fill the
cache, and equal for all tables that share it. The formula is for a fully associative cache; with
32 ways the hit rate is lower by at most 0.0015 (tests/tiers/test_hits.py). Least frequently used,
and rows selected in advance (``static``): the rows with most lookups per byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from irgraph.ir.cost import Popularity

Floats: TypeAlias = NDArray[np.float64]

LRU: Final = "lru"
LFU: Final = "lfu"
STATIC: Final = "static"
Policy: TypeAlias = Literal["lru", "lfu", "static"]

POLICIES: tuple[Policy, ...] = (LRU, LFU, STATIC)
"""Eviction policies of caches; a ``static`` cache always contains the most popular rows."""

BISECTION_STEPS = 80
"""Steps of the bisection for the characteristic time, enough for the precision of a float."""


class Lookups(Struct, frozen=True):
    """Lookups of one table.

    Attributes:
        popularity: of its rows.
        row: bytes of a row in the cache, including its metadata.
        rate: lookups per step or per second, the same unit for all tables of one cache.
    """

    popularity: Popularity
    row: float
    rate: float = 1.0


class Cache(Struct, frozen=True, eq=False):
    """Expected contents of a cache, by table.

    Attributes:
        tables: the tables that share the cache.
        hit_probabilities: for each table, the chance that a row is cached, by group of rows.
    """

    tables: tuple[Lookups, ...]
    hit_probabilities: tuple[Floats, ...]

    def hit_rate(self, table: int) -> float:
        """Return the share of a table's lookups that find their row."""
        counts, chances = _counts_and_chances(self.tables[table])
        return float(np.clip((counts * chances * self.hit_probabilities[table]).sum(), 0.0, 1.0))

    def distinct_misses(self, table: int, lookups: float) -> float:
        """Return the number of different rows that a batch of a table's lookups has to read.

        A row that the batch looks up more than once is read once.
        """
        counts, chances = _counts_and_chances(self.tables[table])
        missing = counts * (1.0 - self.hit_probabilities[table])
        return float((chances_to_occur(chances, lookups) * missing).sum())

    @property
    def cached_bytes(self) -> float:
        """Expected bytes of all cached rows."""
        table_hits = zip(self.tables, self.hit_probabilities, strict=True)
        return float(
            sum(
                t.row * (_counts_and_chances(t)[0] * probabilities).sum()
                for t, probabilities in table_hits
            )
        )


def cache_of(tables: Sequence[Lookups], capacity: float, policy: Policy = LRU) -> Cache:
    """Return the expected contents of a cache of ``capacity`` bytes that tables share."""
    total_bytes = sum(table.row * table.popularity.rows for table in tables)
    if capacity >= total_bytes:
        probabilities = [np.ones(len(table.popularity.counts)) for table in tables]
    elif capacity <= 0:
        probabilities = [np.zeros(len(table.popularity.counts)) for table in tables]
    elif policy == LRU:
        probabilities = _lru_probabilities(tables, capacity)
    else:
        probabilities = _lfu_probabilities(tables, capacity)
    return Cache(tuple(tables), tuple(probabilities))


def chances_to_occur(chances: Floats, lookups: Floats | float) -> Floats:
    """Return the chance of each row to occur among ``lookups`` independent lookups."""
    with np.errstate(divide="ignore", invalid="ignore"):
        missed = np.log1p(-np.minimum(chances, 1.0)) * lookups
    return -np.expm1(np.where(np.asarray(lookups) > 0, missed, 0.0))


def _counts_and_chances(table: Lookups) -> tuple[Floats, Floats]:
    popularity = table.popularity
    return np.asarray(popularity.counts, np.float64), np.asarray(popularity.chances, np.float64)


def _lru_probabilities(tables: Sequence[Lookups], capacity: float) -> list[Floats]:
    """Return the chances that rows were looked up within the characteristic time.

    The characteristic time is found by bisection: the expected bytes equal the capacity.
    """
    total = sum(table.rate for table in tables)
    groups = [(t.row, *_counts_and_chances(t)) for t in tables]
    shares = [table.rate / total * g[2] for table, g in zip(tables, groups, strict=True)]

    def expected_bytes(window: float) -> float:
        tables_with_shares = zip(groups, shares, strict=True)
        return float(
            sum(
                row * (n * chances_to_occur(share, window)).sum()
                for (row, n, _), share in tables_with_shares
            )
        )

    low, high = 0.0, 1.0
    while expected_bytes(high) < capacity and high < np.finfo(np.float64).max / 4:
        low, high = high, high * 2.0
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if expected_bytes(middle) < capacity else (low, middle)
    return [chances_to_occur(share, high) for share in shares]


def _lfu_probabilities(tables: Sequence[Lookups], capacity: float) -> list[Floats]:
    """Return the cached share of each group if rows with most lookups per byte come first."""
    arrays = [_counts_and_chances(table) for table in tables]
    worth = [t.rate * p / t.row for t, (_, p) in zip(tables, arrays, strict=True)]
    sizes = [t.row * n for t, (n, _) in zip(tables, arrays, strict=True)]
    order = np.argsort(-np.concatenate(worth), kind="stable")
    size = np.concatenate(sizes)
    bytes_before = np.concatenate([[0.0], np.cumsum(size[order])[:-1]])
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(size[order] > 0, (capacity - bytes_before) / size[order], 1.0)
    probabilities = np.empty_like(size)
    probabilities[order] = np.clip(share, 0.0, 1.0)
    return list(np.split(probabilities, np.cumsum([len(values) for values in worth])[:-1]))
