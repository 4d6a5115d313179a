"""What a cache of rows holds, and which lookups it therefore keeps off a slower tier.

Least recently used: Che's approximation (Che, Tung and Wang, IEEE JSAC 2002). A row is held if it
was looked up within the last T lookups, where T, the same for all that share the cache, is how many
bring as many bytes as it holds. The formula is of a cache in which a row can lie anywhere; in one
with 32 ways hits are fewer by at most 0.0015 (tests/tiers/test_hits.py). Least frequently used, and
rows chosen before (``static``): the rows that are looked up most for their bytes.
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
"""Which rows leave a full cache; ``static``: none ever does, the most popular ones lie in it."""

HALVINGS = 80
"""Steps of the bisection for the characteristic time: beyond the precision of a float."""


class Lookups(Struct, frozen=True):
    """How one table is looked up.

    Attributes:
        popularity: of its rows.
        row: bytes that a row takes in the cache, with what the cache keeps about it.
        rate: its lookups, as a number a step or a second, the same for all tables of one cache.
    """

    popularity: Popularity
    row: float
    rate: float = 1.0


class Cache(Struct, frozen=True, eq=False):
    """What a cache holds of each table: the chance that a row of a group is in it.

    Attributes:
        tables: those that share the cache.
        held: for each table a chance for each group of its rows.
    """

    tables: tuple[Lookups, ...]
    held: tuple[Floats, ...]

    def hit_rate(self, table: int) -> float:
        """Return the share of a table's lookups that find their row."""
        counts, chances = _arrays(self.tables[table])
        return float(np.clip((counts * chances * self.held[table]).sum(), 0.0, 1.0))

    def fetched(self, table: int, lookups: float) -> float:
        """Return how many different rows a batch of a table's lookups has to read.

        A row that the batch looks up more than once is read once.
        """
        counts, chances = _arrays(self.tables[table])
        missing = counts * (1.0 - self.held[table])
        return float((seen(chances, lookups) * missing).sum())

    @property
    def bytes_held(self) -> float:
        """Bytes of all that is expected to be held."""
        each = zip(self.tables, self.held, strict=True)
        return float(sum(t.row * (_arrays(t)[0] * held).sum() for t, held in each))


def cache_of(tables: Sequence[Lookups], capacity: float, policy: Policy = LRU) -> Cache:
    """Return what a cache of so many bytes holds that tables share."""
    whole = sum(table.row * table.popularity.rows for table in tables)
    if capacity >= whole:
        held = [np.ones(len(table.popularity.counts)) for table in tables]
    elif capacity <= 0:
        held = [np.zeros(len(table.popularity.counts)) for table in tables]
    elif policy == LRU:
        held = _recent(tables, capacity)
    else:
        held = _frequent(tables, capacity)
    return Cache(tuple(tables), tuple(held))


def seen(chances: Floats, lookups: Floats | float) -> Floats:
    """Return the chance of each row to be among so many independent lookups."""
    with np.errstate(divide="ignore", invalid="ignore"):
        missed = np.log1p(-np.minimum(chances, 1.0)) * lookups
    return -np.expm1(np.where(np.asarray(lookups) > 0, missed, 0.0))


def _arrays(table: Lookups) -> tuple[Floats, Floats]:
    known = table.popularity
    return np.asarray(known.counts, np.float64), np.asarray(known.chances, np.float64)


def _recent(tables: Sequence[Lookups], capacity: float) -> list[Floats]:
    """Return the chances that rows were looked up within the characteristic time."""
    total = sum(table.rate for table in tables)
    groups = [(t.row, *_arrays(t)) for t in tables]
    shares = [table.rate / total * g[2] for table, g in zip(tables, groups, strict=True)]

    def held(window: float) -> float:
        brought = zip(groups, shares, strict=True)
        return float(sum(row * (n * seen(share, window)).sum() for (row, n, _), share in brought))

    low, high = 0.0, 1.0
    while held(high) < capacity and high < np.finfo(np.float64).max / 4:
        low, high = high, high * 2.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if held(middle) < capacity else (low, middle)
    return [seen(share, high) for share in shares]


def _frequent(tables: Sequence[Lookups], capacity: float) -> list[Floats]:
    """Return which rows are held where those go first that are looked up most for their bytes."""
    arrays = [_arrays(table) for table in tables]
    worth = [t.rate * p / t.row for t, (_, p) in zip(tables, arrays, strict=True)]
    sizes = [t.row * n for t, (n, _) in zip(tables, arrays, strict=True)]
    order = np.argsort(-np.concatenate(worth), kind="stable")
    size = np.concatenate(sizes)
    before = np.concatenate([[0.0], np.cumsum(size[order])[:-1]])
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(size[order] > 0, (capacity - before) / size[order], 1.0)
    held = np.empty_like(size)
    held[order] = np.clip(share, 0.0, 1.0)
    return list(np.split(held, np.cumsum([len(one) for one in worth])[:-1]))
