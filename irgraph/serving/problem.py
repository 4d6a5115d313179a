"""What is placed: tables with their popularity, a platform's fast memory, and one slower tier."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from irgraph.backend import backend
from irgraph.ir.cost import Popularity
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.schema import bind, resolve
from irgraph.ir.tensor import Tensor
from irgraph.tiers.bags import Bags
from irgraph.tiers.demand import Demand, demand
from irgraph.tiers.hits import Cache, Lookups, Policy, cache_of
from irgraph.tiers.library import load_tier
from irgraph.tiers.tier import Tier, TierDevices
from irgraph.verbs.place import why_not
from irgraph.verbs.tiered_lookups import bag_sizes, longest_of, placeable

ENTRY = 16
"""Bytes that a cache keeps about a row beside it: which one it is, and when it was used."""


SPLITS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""Shares of what fast memory is left that pooled bags are tried with; the rest is for rows."""


class Table(Struct, frozen=True):
    """A table, as one query looks it up: its rows, a row's bytes, lookups, popularity.

    ``bags`` are the lists of indices that its bags have, where pooled ones may be held, and ``bag``
    the bytes that one takes with its key.
    """

    name: str
    rows: int
    row: int
    lookups: float
    popularity: Popularity
    bags: Bags | None = None
    bag: int = 0

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


def store(piece: TierDevices) -> Store:
    """Return what a platform has of a tier."""
    tier = load_tier(piece.tier)
    each = piece.capacity_gb or (tier.capacity_gb.value if tier.capacity_gb else 0.0)
    held = piece.count * each if piece.tables_gb is None else piece.tables_gb
    return Store(tier, piece.count, 1e9 * held)


def tables_of(graph: Graph, indices: Sequence[str] = (), lists: str | None = None) -> list[Table]:
    """Return the tables that a step looks up and that can be placed, a step being one query.

    With ``lists``, as ``place`` takes them, pooled bags of theirs may be held.
    """
    known = backend().popularity(graph, indices)
    entries = {} if lists is None else bag_sizes(graph)
    found = []
    for name, weight, op in placeable(graph):
        if why_not(graph, name):
            continue
        index, rows = _indices(op, graph), int(weight.shape[0])
        row = int(weight.shape[1]) * weight.itemsize
        count = float(index.numel) if index is not None else 0.0
        one = Table(name, rows, row, count, known[name])
        if lists is not None and name in entries and index is not None:
            made = op.outputs[0]
            sizes = (rows, int(made.shape[0]), longest_of(index, made))
            bags = backend().bags(graph, indices, index, sizes, lists)
            one = replace(one, bags=bags, bag=entries[name])
        found.append(one)
    return found


class FixedTable(Struct, frozen=True):
    """A table that stays in fast memory: its name, its bytes, and why it cannot be placed."""

    name: str
    nbytes: float
    why: str


def fixed_of(graph: Graph) -> list[FixedTable]:
    """Return the tables that a step looks up and that cannot be placed, each once."""
    bags = {weight.buffer: name for name, weight, _ in placeable(graph)}
    reasons = {buffer: why_not(graph, name) for buffer, name in bags.items()}
    for op in graph.leaves():
        if op.name == "aten.embedding" and op.inputs:
            reasons[op.inputs[0].buffer] = "its rows are looked up one by one, not in bags"
    return [
        FixedTable(d.label or d.tensor.name, float(d.tensor.nbytes), reasons[d.tensor.buffer])
        for d in graph.tensors
        if d.role == "param" and reasons.get(d.tensor.buffer)
    ]


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
    known: dict[frozenset[str], TableLayout] = field(default_factory=dict, compare=False)

    def density(self, table: Table) -> float:
        """Return seconds of the slower tier that a query's lookups take, for each byte of a table.

        Nothing is cached: where reads count, these are reads for each byte, else bytes.
        """
        asked = demand(self.slow.tier, table.row, table.lookups, sub_block=self.sub_block)
        return self.slow.seconds(asked) / max(table.nbytes, 1.0)

    def placed(self, fast: Collection[str]) -> TableLayout:
        """Return what it means to keep some tables in fast memory."""
        key = frozenset(fast)
        if key not in self.known:
            self.known[key] = self._placed(key)
        return self.known[key]

    def pooled(self, placed: TableLayout) -> TableLayout:
        """Return a placement with a cache of pooled bags in that part of the room that is best.

        Each moved table has as many; the same placement comes back where none makes reads fewer.
        """
        each = sum(table.bag for table in placed.moved)
        if not placed.fits or not each or any(table.bags is None for table in placed.moved):
            return placed
        counts = {int(share * placed.room // each) for share in SPLITS} - {0}
        found = [self._placed(placed.fast, count) for count in sorted(counts)]
        return min([placed, *found], key=lambda one: one.cost)

    def _placed(self, fast: frozenset[str], pooled: int = 0) -> TableLayout:
        moved = [table for table in self.tables if table.name not in fast]
        kept = sum(table.nbytes for table in self.tables if table.name in fast)
        whole = max(self.fast - kept, 0.0)
        room = max(whole - pooled * sum(table.bag for table in moved), 0.0)
        left = [t.lookups * (1.0 - self._found(t, pooled)) for t in moved]
        each = [
            Lookups(t.popularity, t.row + ENTRY, max(n, 1e-9))
            for t, n in zip(moved, left, strict=True)
        ]
        cache = cache_of(each, room, self.policy)
        asked = Demand()
        for number, table in enumerate(moved):
            rows = cache.fetched(number, left[number]) if room else left[number]
            asked += demand(self.slow.tier, table.row, rows, sub_block=self.sub_block)
        slow = sum(table.nbytes for table in moved)
        fits = kept <= self.fast * (1 + 1e-9) and slow <= self.slow.nbytes * (1 + 1e-9)
        return TableLayout(
            fast, tuple(moved), cache, asked, fits, self.slow, whole, pooled, tuple(left)
        )

    def _found(self, table: Table, pooled: int) -> float:
        """Return the share of a table's lookups that are of bags which a cache of so many holds."""
        if table.bags is None or not pooled:
            return 0.0
        return table.bags.found(pooled, self.policy)[1]


class TableLayout(Struct, frozen=True, eq=False):
    """One way of placing tables.

    Attributes:
        fast: tables in fast memory.
        moved: the others.
        cache: of the others, in what fast memory is left.
        asked: what one query asks of the slower tier.
        fits: whether both memories hold what they are to hold.
        slow: the slower tier.
        room: bytes of fast memory that are left for caches.
        pooled: bags of each moved table that a cache of pooled bags holds.
        left: lookups of each moved table in a query that are not of pooled bags.
    """

    fast: frozenset[str]
    moved: tuple[Table, ...]
    cache: Cache
    asked: Demand
    fits: bool
    slow: Store
    room: float = 0.0
    pooled: int = 0
    left: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds of the slower tier that a query takes at its best rate."""
        return self.slow.seconds(self.asked)

    @property
    def cost(self) -> float:
        """``seconds``, or infinity where it does not fit."""
        return self.seconds if self.fits else float("inf")

    def hit_rate(self) -> float:
        """Share of the lookups of moved tables, pooled bags left out, that the cache answers."""
        total = sum(self.left)
        hits = (count * self.cache.hit_rate(i) for i, count in enumerate(self.left))
        return sum(hits) / total if total else 1.0

    def pooled_rate(self) -> float:
        """Share of the lookups of moved tables that are of pooled bags."""
        total = sum(table.lookups for table in self.moved)
        return 1.0 - sum(self.left) / total if total else 0.0

    @property
    def pooled_bytes(self) -> float:
        """Bytes of the cache of pooled bags."""
        return float(self.pooled * sum(table.bag for table in self.moved))

    def rows_held(self) -> dict[str, int]:
        """Return how many rows of each moved table the cache is expected to hold."""
        found = {}
        for number, table in enumerate(self.moved):
            held = sum(
                n * h for n, h in zip(table.popularity.counts, self.cache.held[number], strict=True)
            )
            found[table.name] = int(held)
        return found
