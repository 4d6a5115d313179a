"""What is placed: tables with their popularity, a platform's fast memory, and one slower tier."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from irgraph.backend import backend
from irgraph.ir.cost import Popularity
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.schema import bind, resolve
from irgraph.ir.tensor import Tensor
from irgraph.tiers.demand import Demand, demand
from irgraph.tiers.hits import Cache, Lookups, Policy, cache_of
from irgraph.tiers.library import load_tier
from irgraph.tiers.tier import Piece, Tier
from irgraph.verbs.placing import placeable

ENTRY = 16
"""Bytes that a cache keeps about a row beside it: which one it is, and when it was used."""


class Table(Struct, frozen=True):
    """A table, as one query looks it up: its rows, a row's bytes, lookups, popularity."""

    name: str
    rows: int
    row: int
    lookups: float
    popularity: Popularity

    @property
    def nbytes(self) -> float:
        """Bytes of all its rows."""
        return float(self.rows * self.row)


class Store(Struct, frozen=True):
    """Pieces of a tier: which one, how many, bytes of all."""

    tier: Tier
    pieces: int
    nbytes: float

    def seconds(self, asked: Demand) -> float:
        """Return the seconds that reads take at the best rate of all pieces."""
        by_reads = asked.reads / (self.tier.rate * self.pieces)
        return max(by_reads, asked.nbytes / (1e9 * self.tier.read_gbs.value * self.pieces))


def store(piece: Piece) -> Store:
    """Return what a platform has of a tier."""
    tier = load_tier(piece.tier)
    each = piece.capacity_gb or (tier.capacity_gb.value if tier.capacity_gb else 0.0)
    held = piece.count * each if piece.tables_gb is None else piece.tables_gb
    return Store(tier, piece.count, 1e9 * held)


def tables_of(graph: Graph, indices: Sequence[str] = ()) -> list[Table]:
    """Return the tables that a step looks up, a step being one query."""
    known = backend().popularity(graph, indices)
    found = []
    for name, weight, op in placeable(graph):
        index = _indices(op, graph)
        row = int(weight.shape[1]) * weight.itemsize
        count = float(index.numel) if index is not None else 0.0
        found.append(Table(name, int(weight.shape[0]), row, count, known[name]))
    return found


def _indices(op: Op, graph: Graph) -> Tensor | None:
    schema = resolve(op, graph.schemas)
    given = {argument.name: value for argument, value in bind(schema, op)} if schema else {}
    value = given.get("indices")
    return value if isinstance(value, Tensor) else None


@dataclass(frozen=True)
class Problem:
    """Which tables lie in fast memory, what is left of it being a cache for the others.

    Attributes:
        tables: all of them.
        fast: bytes of fast memory for tables and the cache.
        slow: the tier for the others.
        policy: of the cache.
        sub_block: whether reads ask for rows, not for blocks.
    """

    tables: Sequence[Table]
    fast: float
    slow: Store
    policy: Policy = "lru"
    sub_block: bool = False
    known: dict[frozenset[str], Placed] = field(default_factory=dict, compare=False)

    def density(self, table: Table) -> float:
        """Return seconds of the slower tier that a query's lookups take, for each byte of a table.

        Nothing is cached: where reads count, these are reads for each byte, else bytes.
        """
        asked = demand(self.slow.tier, table.row, table.lookups, sub_block=self.sub_block)
        return self.slow.seconds(asked) / max(table.nbytes, 1.0)

    def placed(self, fast: Collection[str]) -> Placed:
        """Return what it means to keep some tables in fast memory."""
        key = frozenset(fast)
        if key not in self.known:
            self.known[key] = self._placed(key)
        return self.known[key]

    def _placed(self, fast: frozenset[str]) -> Placed:
        moved = [table for table in self.tables if table.name not in fast]
        kept = sum(table.nbytes for table in self.tables if table.name in fast)
        room = max(self.fast - kept, 0.0)
        each = [Lookups(t.popularity, t.row + ENTRY, max(t.lookups, 1e-9)) for t in moved]
        cache = cache_of(each, room, self.policy)
        asked = Demand()
        for number, table in enumerate(moved):
            rows = cache.fetched(number, table.lookups) if room else table.lookups
            asked += demand(self.slow.tier, table.row, rows, sub_block=self.sub_block)
        slow = sum(table.nbytes for table in moved)
        fits = kept <= self.fast * (1 + 1e-9) and slow <= self.slow.nbytes * (1 + 1e-9)
        return Placed(fast, tuple(moved), cache, asked, fits, self.slow)


class Placed(Struct, frozen=True, eq=False):
    """One way of placing tables.

    Attributes:
        fast: tables in fast memory.
        moved: the others.
        cache: of the others, in what fast memory is left.
        asked: what one query asks of the slower tier.
        fits: whether both memories hold what they are to hold.
        slow: the slower tier.
    """

    fast: frozenset[str]
    moved: tuple[Table, ...]
    cache: Cache
    asked: Demand
    fits: bool
    slow: Store

    @property
    def seconds(self) -> float:
        """Seconds of the slower tier that a query takes at its best rate."""
        return self.slow.seconds(self.asked)

    @property
    def cost(self) -> float:
        """``seconds``, or infinity where it does not fit."""
        return self.seconds if self.fits else float("inf")

    def hit_rate(self) -> float:
        """Share of the lookups of moved tables that find their row in the cache."""
        total = sum(table.lookups for table in self.moved)
        hits = (t.lookups * self.cache.hit_rate(i) for i, t in enumerate(self.moved))
        return sum(hits) / total if total else 1.0

    def rows_held(self) -> dict[str, int]:
        """Return how many rows of each moved table the cache is expected to hold."""
        found = {}
        for number, table in enumerate(self.moved):
            held = sum(
                n * h for n, h in zip(table.popularity.counts, self.cache.held[number], strict=True)
            )
            found[table.name] = int(held)
        return found
