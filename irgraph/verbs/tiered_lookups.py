"""The ops that stand in place of lookups of tables on another tier, and what they need before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.edit import free_name, names_of
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.narrow.ops import FORMAT_OF, ROWS_LOOKUP
from irgraph.ir.op import Op, Value
from irgraph.ir.schema import arguments_of
from irgraph.ir.tensor import Tensor
from irgraph.verbs.sharding.tables import lookups

PROBE, READ, POOL, FILL = (f"irgraph.tier_{name}" for name in ("probe", "read", "pool", "fill"))
BAG_PROBE, BAG_FILL = "irgraph.bag_probe", "irgraph.bag_fill"

LONGEST = 2
"""A cache of pooled bags holds those that are up to so many times as long as the mean."""


def placeable(graph: Graph) -> Iterator[tuple[str, Tensor, Op]]:
    """Yield the name, the rows and the op of every lookup of bags, in narrow rows too."""
    yield from lookups(graph)
    labels = {d.tensor.buffer: d.label or d.tensor.name for d in graph.tensors}
    for op in graph.leaves():
        if kind_of(op) and op.inputs[0].rank == 2:
            weight = op.inputs[0]
            yield labels.get(weight.buffer, weight.name), weight, op


def pooling_of(graph: Graph, op: Op) -> tuple[Value, bool]:
    """Return how a lookup pools bags, and whether its offsets have an end: alike in one reading."""
    given = arguments_of(op, graph.schemas)
    return given.get("mode", 0), bool(given.get("include_last_offset"))


def kind_of(op: Op) -> str:
    """Return the format of the rows that a lookup reads, ``""`` where they are plain elements."""
    if op.name == ROWS_LOOKUP and op.inputs:
        return op.inputs[0].dtype
    return FORMAT_OF.get(op.name, "") if op.inputs else ""


class TablePlacement(Struct, frozen=True):
    """Where tables are put.

    Attributes:
        tier: its name, or a path.
        pieces: of it, over which rows are spread.
        cached: rows of each table, by its name, that the cache holds; none or 0 for no cache.
        policy: ``lru``, ``lfu``, or ``static`` for rows that were chosen by their popularity.
        sub_block: whether reads ask for the rows alone, not for whole blocks.
        load: share of the tier's reads a second that others take.
        pooled: bags of each table, by its name, that a cache of pooled bags holds.
        lists: how many different bags there are, and how often each comes again, as in
            ``100000 zipf:0.9``; ``""`` where rows of a bag are drawn one by one.
    """

    tier: str
    pieces: int = 1
    cached: Mapping[str, int] = {}
    policy: str = "lru"
    sub_block: bool = False
    load: float = 0.0
    pooled: Mapping[str, int] = {}
    lists: str = ""


def longest_of(indices: Tensor, bags: Tensor) -> int:
    """Return the rows of the longest bag that a cache of pooled bags holds."""
    return max(LONGEST * -(-int(indices.shape[0]) // max(int(bags.shape[0]), 1)), 1)


def bag_sizes(graph: Graph) -> dict[str, int]:
    """Return by table the bytes that one pooled bag takes in a cache, with its key."""
    found: dict[str, int] = {}
    for name, _, op in placeable(graph):
        given = arguments_of(op, graph.schemas)
        indices, made = given.get("indices"), op.outputs[0]
        if isinstance(indices, Tensor) and indices.rank and made.rank == 2:
            key = 8 * (2 + longest_of(indices, made))
            found[name] = key + int(made.shape[1]) * made.itemsize
    return found


class Lookup(Struct, frozen=True):
    """One lookup of bags: its table's name and rows, the leaf, what called it, its arguments."""

    name: str
    weight: Tensor
    leaf: Op
    outer: Op
    given: Mapping[str, Value]

    def tensor(self, argument: str) -> Tensor:
        """Return an argument that is a tensor."""
        found = self.given[argument]
        assert isinstance(found, Tensor)
        return found


def _pooling(chosen: Sequence[Lookup]) -> dict[str, Value]:
    """Return the arguments of pooling that are not the schema's defaults."""
    found: dict[str, Value] = {
        k: v for k in ("mode", "include_last_offset") if (v := chosen[0].given.get(k))
    }
    kinds = tuple(kind_of(one.leaf) for one in chosen)
    scales = tuple(s for one in chosen if isinstance(s := one.given.get("scale"), Tensor))
    found |= {"kinds": kinds} if any(kinds) else {}
    return found | ({"scales": scales} if scales else {})


class RowCaches(Struct, frozen=True):
    """Caches of rows: what is declared, the directory and the slots of each table."""

    declared: Sequence[Declared]
    directories: tuple[Tensor, ...]
    held: tuple[Tensor, ...]


class Bags(Struct, frozen=True):
    """Caches of pooled bags: what is declared, and for each table its keys and its bags.

    ``found`` are the slots of a step's bags, ``wanted`` marks the indices that are still wanted;
    ``longest`` are the rows of the longest bag that is held.
    """

    declared: Sequence[Declared]
    keys: tuple[Tensor, ...]
    bags: tuple[Tensor, ...]
    found: tuple[Tensor, ...]
    wanted: tuple[Tensor, ...]
    longest: tuple[int, ...]

    def probe(
        self, indices: tuple[Tensor, ...], offsets: tuple[Tensor, ...], pooling: Mapping[str, Value]
    ) -> Op:
        """Return the op that looks for bags."""
        closed = {k: v for k, v in pooling.items() if k == "include_last_offset"}
        return Op(BAG_PROBE, (self.keys, indices, offsets), (self.found, self.wanted), closed)

    def reading(self, lists: str) -> dict[str, Value]:
        """Return what reads are told of bags, so that they can be priced."""
        said: dict[str, Value] = {"lists": lists} if lists else {}
        slots = tuple(int(t.shape[0]) for t in self.bags)
        return {"found": self.found, "pooled": slots, "longest": self.longest, **said}


class Writer:
    """Writes the ops that stand in place of lookups, and what exists before the step for them."""

    def __init__(self, graph: Graph, where: TablePlacement) -> None:
        self.graph = graph
        self.where = where
        self.taken = names_of(graph)

    def written(self, chosen: Sequence[Lookup]) -> tuple[list[Declared], tuple[Op, ...]]:
        """Return the caches and directories, and the ops in order."""
        weights = tuple(one.weight for one in chosen)
        indices = tuple(one.tensor("indices") for one in chosen)
        offsets = tuple(one.tensor("offsets") for one in chosen)
        staged = tuple(self._rows(one) for one in chosen)
        pools, rows = self._bags(chosen), self._cached(chosen)
        reading, pooling = self._reading(), _pooling(chosen)
        before: list[Op] = []
        after: list[Op] = []
        if pools:
            before.append(pools.probe(indices, offsets, pooling))
            reading |= {**pools.reading(self.where.lists), "slots": pools.wanted}
            pooling |= {"found": pools.found, "bags": pools.bags}
        if rows:
            slots = tuple(self._fresh("slots", "i64", i.shape) for i in indices)
            more: dict[str, Value] = {"wanted": pools.wanted} if pools else {}
            before.append(Op(PROBE, (rows.directories, indices), (slots,), more))
            held = tuple(int(t.shape[0]) for t in rows.held)
            reading |= {"slots": slots, "cached": held, "policy": self.where.policy}
            pooling |= {"held": rows.held, "slots": slots}
            after.append(self._fill(rows.directories, rows.held, (indices, slots, staged)))
        elif pools:
            reading |= {"policy": self.where.policy}
        made = tuple(one.leaf.outputs[0] for one in chosen)
        if pools:
            closed = {k: v for k, v in pooling.items() if k == "include_last_offset"}
            fill = self._fill(pools.keys, pools.bags, (indices, offsets, pools.found, made))
            after.append(replace(fill, attributes={**fill.attributes, **closed}))
        read = Op(READ, (weights, indices), (staged,), reading)
        pool = Op(POOL, (staged, offsets), (made,), pooling)
        kept = after if self.where.policy != "static" else []
        declared = [d for one in (rows, pools) if one for d in one.declared]
        return declared, (*before, read, pool, *kept)

    def _cached(self, chosen: Sequence[Lookup]) -> RowCaches | None:
        """Return the caches of rows, if there are any."""
        if not any(self.where.cached.get(one.name) for one in chosen):
            return None
        declared = [d for one in chosen for d in self._cache(one)]
        tensors = tuple(d.tensor for d in declared)
        return RowCaches(declared, tensors[::2], tensors[1::2])

    def _bags(self, chosen: Sequence[Lookup]) -> Bags | None:
        """Return the caches of pooled bags, if there are any."""
        if not any(self.where.pooled.get(one.name) for one in chosen):
            return None
        declared, longest = [], []
        for one in chosen:
            count = max(int(self.where.pooled.get(one.name, 0)), 1)
            made = one.leaf.outputs[0]
            longest.append(longest_of(one.tensor("indices"), made))
            keys = self._fresh("keys", "i64", (count, 2 + longest[-1]))
            bags = self._fresh("bags", made.dtype, (count, int(made.shape[1])))
            declared += [
                Declared("state", keys, f"{one.name}.keys"),
                Declared("state", bags, f"{one.name}.bags"),
            ]
        tensors = tuple(d.tensor for d in declared)
        found = tuple(self._fresh("found", "i64", one.leaf.outputs[0].shape[:1]) for one in chosen)
        wanted = tuple(self._fresh("wanted", "i64", one.tensor("indices").shape) for one in chosen)
        return Bags(declared, tensors[::2], tensors[1::2], found, wanted, tuple(longest))

    def _fill(
        self,
        directories: tuple[Tensor, ...],
        held: tuple[Tensor, ...],
        read: tuple[tuple[Tensor, ...], ...],
    ) -> Op:
        """Return the op that keeps rows that were read, or bags that were pooled."""
        written = frozenset(t.name for t in (*directories, *held))
        policy = self.where.policy
        given: dict[str, Value] = {} if policy == "lru" else {"policy": policy}
        return Op(
            FILL if len(read) == 3 else BAG_FILL, (directories, held, *read), (), given, written
        )

    def _reading(self) -> dict[str, Value]:
        """Return the arguments of reads that are not the schema's defaults."""
        where = self.where
        given: dict[str, Value] = {"tier": where.tier}
        given |= {"pieces": where.pieces} if where.pieces > 1 else {}
        given |= {"sub_block": True} if where.sub_block else {}
        return given | ({"load": where.load} if where.load else {})

    def _rows(self, one: Lookup) -> Tensor:
        """Return the tensor of the rows that are read, one for each index."""
        count = one.tensor("indices").shape[0]
        return self._fresh("rows", one.weight.dtype, (count, one.weight.shape[1]))

    def _cache(self, one: Lookup) -> list[Declared]:
        """Return a table's directory and its cache."""
        count = max(int(self.where.cached.get(one.name, 0)), 1)
        directory = self._fresh("directory", "i64", (2, count))
        held = self._fresh("held", one.weight.dtype, (count, int(one.weight.shape[1])))
        return [
            Declared("state", directory, f"{one.name}.directory"),
            Declared("state", held, f"{one.name}.held"),
        ]

    def _fresh(self, name: str, dtype: str, shape: Sequence[int]) -> Tensor:
        found = free_name(name, self.taken)
        self.taken.add(found)
        return Tensor(found, dtype, tuple(shape), found, device=self.graph.device)
