"""Placement problems: tables with their popularity, a platform's fast memory, one slower tier."""

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
from irgraph.verbs.place import placement_obstacle
from irgraph.verbs.tiered_lookups import bag_sizes, longest_of, placeable_lookups

CACHE_ENTRY_BYTES = 16
"""Bytes of a cached row's metadata: its index and its last use."""

POOLED_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""Shares of the remaining fast memory to try for pooled bags; the rest is for rows."""


class ServedTable(Struct, frozen=True):
    """A table in one query: its rows, the bytes of a row, its lookups and their popularity.

    ``bags`` are the lists of indices of its bags if pooled bags may be cached, and ``bag`` is the
    bytes of a cached bag with its key.
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
    """Devices of a tier: the tier, their number, and their total bytes."""

    tier: Tier
    pieces: int
    nbytes: float

    def seconds(self, tier_demand: Demand) -> float:
        """Return the seconds of reads at the best rate of all devices."""
        by_reads = tier_demand.reads / (self.tier.rate * self.pieces)
        return max(by_reads, tier_demand.nbytes / (1e9 * self.tier.read_gbs.value * self.pieces))


def store(piece: TierDevices) -> Store:
    """Return a platform's devices of a tier, with the capacity for tables and caches."""
    tier = load_tier(piece.tier)
    device_gb = piece.capacity_gb or (tier.capacity_gb.value if tier.capacity_gb else 0.0)
    tables_gb = piece.count * device_gb if piece.tables_gb is None else piece.tables_gb
    return Store(tier, piece.count, 1e9 * tables_gb)


def tables_of(
    graph: Graph, indices: Sequence[str] = (), lists: str | None = None
) -> list[ServedTable]:
    """Return the tables that a step looks up and that can be placed; a step is one query.

    With ``lists``, in the syntax of ``place``, their pooled bags may be cached.
    """
    popularities = backend().popularity(graph, indices)
    bag_bytes = {} if lists is None else bag_sizes(graph)
    tables = []
    for name, weight, op in placeable_lookups(graph):
        if placement_obstacle(graph, name):
            continue
        index, rows = _indices(op, graph), int(weight.shape[0])
        row = int(weight.shape[1]) * weight.itemsize
        count = float(index.numel) if index is not None else 0.0
        table = ServedTable(name, rows, row, count, popularities[name])
        if lists is not None and name in bag_bytes and index is not None:
            output = op.outputs[0]
            sizes = (rows, int(output.shape[0]), longest_of(index, output))
            bags = backend().bags(graph, indices, index, sizes, lists)
            table = replace(table, bags=bags, bag=bag_bytes[name])
        tables.append(table)
    return tables


class FixedTable(Struct, frozen=True):
    """A table that stays in fast memory: its name, its bytes, and the reason."""

    name: str
    nbytes: float
    reason: str


def fixed_of(graph: Graph) -> list[FixedTable]:
    """Return the tables that a step looks up and that cannot be placed, each once."""
    bags = {weight.buffer: name for name, weight, _ in placeable_lookups(graph)}
    reasons = {buffer: placement_obstacle(graph, name) for buffer, name in bags.items()}
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
    arguments = {argument.name: value for argument, value in bind(schema, op)} if schema else {}
    value = arguments.get("indices")
    return value if isinstance(value, Tensor) else None


@dataclass(frozen=True)
class PlacementProblem:
    """Choice of the tables in fast memory, the rest of which caches rows of the other tables.

    Attributes:
        tables: all tables.
        fast: bytes of fast memory for tables and the cache.
        slow: devices of the slower tier.
        policy: of the cache.
        sub_block: whether reads request single rows instead of blocks.
        layouts: evaluated placements, by the names of tables in fast memory.
    """

    tables: Sequence[ServedTable]
    fast: float
    slow: Store
    policy: Policy = "lru"
    sub_block: bool = False
    layouts: dict[frozenset[str], TableLayout] = field(default_factory=dict, compare=False)

    def density(self, table: ServedTable) -> float:
        """Return the seconds of the slower tier for a query's lookups, per byte of a table.

        Without a cache this is proportional to reads per byte if reads are the limit, else to
        transferred bytes per byte.
        """
        tier_demand = demand(self.slow.tier, table.row, table.lookups, sub_block=self.sub_block)
        return self.slow.seconds(tier_demand) / max(table.nbytes, 1.0)

    def layout_for(self, fast: Collection[str]) -> TableLayout:
        """Return the layout with the named tables in fast memory."""
        key = frozenset(fast)
        if key not in self.layouts:
            self.layouts[key] = self._layout(key)
        return self.layouts[key]

    def with_pooled_bags(self, layout: TableLayout) -> TableLayout:
        """Return a layout with a cache of pooled bags in the best share of the remaining memory.

        Each moved table has equally many bags; returns ``layout`` if no share reduces its cost.
        """
        bag_bytes = sum(table.bag for table in layout.moved_tables)
        if (
            not layout.fits
            or not bag_bytes
            or any(table.bags is None for table in layout.moved_tables)
        ):
            return layout
        counts = {int(share * layout.room // bag_bytes) for share in POOLED_SHARES} - {0}
        candidates = [self._layout(layout.fast, count) for count in sorted(counts)]
        return min([layout, *candidates], key=lambda candidate: candidate.cost)

    def _layout(self, fast: frozenset[str], pooled: int = 0) -> TableLayout:
        moved_tables = [table for table in self.tables if table.name not in fast]
        fast_bytes = sum(table.nbytes for table in self.tables if table.name in fast)
        cache_room = max(self.fast - fast_bytes, 0.0)
        row_cache_room = max(cache_room - pooled * sum(table.bag for table in moved_tables), 0.0)
        unpooled_lookups = [
            t.lookups * (1.0 - self._bag_hit_share(t, pooled)) for t in moved_tables
        ]
        row_lookups = [
            Lookups(t.popularity, t.row + CACHE_ENTRY_BYTES, max(n, 1e-9))
            for t, n in zip(moved_tables, unpooled_lookups, strict=True)
        ]
        cache = cache_of(row_lookups, row_cache_room, self.policy)
        tier_demand = Demand()
        for number, table in enumerate(moved_tables):
            rows = (
                cache.distinct_misses(number, unpooled_lookups[number])
                if row_cache_room
                else unpooled_lookups[number]
            )
            tier_demand += demand(self.slow.tier, table.row, rows, sub_block=self.sub_block)
        slow_bytes = sum(table.nbytes for table in moved_tables)
        fits = fast_bytes <= self.fast * (1 + 1e-9) and slow_bytes <= self.slow.nbytes * (1 + 1e-9)
        return TableLayout(
            fast,
            tuple(moved_tables),
            cache,
            tier_demand,
            fits,
            self.slow,
            cache_room,
            pooled,
            tuple(unpooled_lookups),
        )

    def _bag_hit_share(self, table: ServedTable, pooled: int) -> float:
        """Return the share of a table's lookups in bags that a cache of ``pooled`` bags answers."""
        if table.bags is None or not pooled:
            return 0.0
        return table.bags.hit_shares(pooled, self.policy)[1]


class TableLayout(Struct, frozen=True, eq=False):
    """A placement of tables and its demand on the slower tier.

    Attributes:
        fast: names of tables in fast memory.
        moved_tables: the other tables.
        cache: of their rows, in the rest of fast memory.
        query_demand: demand of one query on the slower tier.
        fits: whether both memories are large enough.
        slow: devices of the slower tier.
        room: remaining bytes of fast memory for caches.
        pooled: cached pooled bags of each moved table.
        unpooled_lookups: lookups of a query that are not in cached bags, for each moved table.
    """

    fast: frozenset[str]
    moved_tables: tuple[ServedTable, ...]
    cache: Cache
    query_demand: Demand
    fits: bool
    slow: Store
    room: float = 0.0
    pooled: int = 0
    unpooled_lookups: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds of the slower tier for a query at its best rate."""
        return self.slow.seconds(self.query_demand)

    @property
    def cost(self) -> float:
        """``seconds``, or infinity if the tables do not fit."""
        return self.seconds if self.fits else float("inf")

    def hit_rate(self) -> float:
        """Share of the lookups of moved tables, pooled bags excluded, that the cache answers."""
        total = sum(self.unpooled_lookups)
        hits = (count * self.cache.hit_rate(i) for i, count in enumerate(self.unpooled_lookups))
        return sum(hits) / total if total else 1.0

    def pooled_rate(self) -> float:
        """Share of the lookups of moved tables that are in cached pooled bags."""
        total = sum(table.lookups for table in self.moved_tables)
        return 1.0 - sum(self.unpooled_lookups) / total if total else 0.0

    @property
    def pooled_bytes(self) -> float:
        """Bytes of the cache of pooled bags."""
        return float(self.pooled * sum(table.bag for table in self.moved_tables))

    def cached_rows(self) -> dict[str, int]:
        """Return the expected number of cached rows of each moved table, by name."""
        rows_by_table = {}
        for number, table in enumerate(self.moved_tables):
            expected_rows = sum(
                n * h
                for n, h in zip(
                    table.popularity.counts, self.cache.hit_probabilities[number], strict=True
                )
            )
            rows_by_table[table.name] = int(expected_rows)
        return rows_by_table
