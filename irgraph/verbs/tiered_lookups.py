"""Ops that replace lookups of tables on another tier, and the tensors that they need."""

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
from irgraph.verbs.sharding.embeddings.tables import lookups

PROBE, READ, POOL, FILL = (f"irgraph.tier_{name}" for name in ("probe", "read", "pool", "fill"))
BAG_PROBE = "irgraph.bag_probe"
BAG_FILL = "irgraph.bag_fill"

MAX_BAG_RATIO = 2
"""Maximum length of a bag in a cache of pooled bags, as a multiple of the mean length."""


def placeable_lookups(graph: Graph) -> Iterator[tuple[str, Tensor, Op]]:
    """Yield the name, the rows and the op of every lookup of bags, including narrow rows."""
    yield from lookups(graph)
    labels = {d.tensor.buffer: d.label or d.tensor.name for d in graph.tensors}
    for op in graph.leaves():
        if kind_of(op) and op.inputs[0].rank == 2:
            weight = op.inputs[0]
            yield labels.get(weight.buffer, weight.name), weight, op


def pooling_of(graph: Graph, op: Op) -> tuple[Value, bool]:
    """Return a lookup's pooling mode, and whether its offsets have an end.

    Lookups of one reading must agree in both.
    """
    arguments = arguments_of(op, graph.schemas)
    return arguments.get("mode", 0), bool(arguments.get("include_last_offset"))


def kind_of(op: Op) -> str:
    """Return the format of the rows that a lookup reads, ``""`` if they are plain elements."""
    if op.name == ROWS_LOOKUP and op.inputs:
        return op.inputs[0].dtype
    return FORMAT_OF.get(op.name, "") if op.inputs else ""


class TablePlacement(Struct, frozen=True):
    """Placement of tables on a tier.

    Attributes:
        tier: its name, or a path.
        pieces: number of devices of the tier over which rows are distributed.
        cached: number of cached rows of each table, by its name; omitted or 0 for no cache.
        policy: ``lru``, ``lfu``, or ``static`` for rows that were chosen by their popularity.
        sub_block: whether reads transfer only the rows, not whole blocks.
        load: fraction of the tier's reads per second that others use.
        pooled: bags of each table, by its name, in a cache of pooled bags.
        lists: number of different bags and the distribution of their repetitions, as in
            ``100000 zipf:0.9``; ``""`` if rows of a bag are drawn independently.
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
    """Return the rows of the longest bag in a cache of pooled bags."""
    return max(MAX_BAG_RATIO * -(-int(indices.shape[0]) // max(int(bags.shape[0]), 1)), 1)


def bag_sizes(graph: Graph) -> dict[str, int]:
    """Return the bytes that one pooled bag needs in a cache, with its key, by table."""
    sizes: dict[str, int] = {}
    for name, _, op in placeable_lookups(graph):
        arguments = arguments_of(op, graph.schemas)
        indices, bags = arguments.get("indices"), op.outputs[0]
        if isinstance(indices, Tensor) and indices.rank and bags.rank == 2:
            key = 8 * (2 + longest_of(indices, bags))
            sizes[name] = key + int(bags.shape[1]) * bags.itemsize
    return sizes


class Lookup(Struct, frozen=True):
    """One lookup of bags: its table's name and rows, leaf, outermost call and arguments."""

    name: str
    weight: Tensor
    leaf: Op
    outer: Op
    arguments: Mapping[str, Value]

    def tensor(self, argument: str) -> Tensor:
        """Return an argument that is a tensor."""
        value = self.arguments[argument]
        assert isinstance(value, Tensor)
        return value


def _pooling(table_lookups: Sequence[Lookup]) -> dict[str, Value]:
    """Return the arguments of pooling that are not the schema's defaults."""
    arguments: dict[str, Value] = {
        k: v for k in ("mode", "include_last_offset") if (v := table_lookups[0].arguments.get(k))
    }
    kinds = tuple(kind_of(lookup.leaf) for lookup in table_lookups)
    scales = tuple(
        s for lookup in table_lookups if isinstance(s := lookup.arguments.get("scale"), Tensor)
    )
    arguments |= {"kinds": kinds} if any(kinds) else {}
    return arguments | ({"scales": scales} if scales else {})


class RowCaches(Struct, frozen=True):
    """Caches of rows: their declarations, and the directory and the slots of each table."""

    declared: Sequence[Declared]
    directories: tuple[Tensor, ...]
    rows: tuple[Tensor, ...]


class BagCaches(Struct, frozen=True):
    """Caches of pooled bags: their declarations, and for each table its keys and its bags.

    ``bag_slots`` are the slots of a step's bags, ``index_marks`` marks the indices that are still
    needed; ``longest`` are the rows of the longest bag in the cache.
    """

    declared: Sequence[Declared]
    keys: tuple[Tensor, ...]
    bags: tuple[Tensor, ...]
    bag_slots: tuple[Tensor, ...]
    index_marks: tuple[Tensor, ...]
    longest: tuple[int, ...]

    def probe(
        self, indices: tuple[Tensor, ...], offsets: tuple[Tensor, ...], pooling: Mapping[str, Value]
    ) -> Op:
        """Return the op that looks up bags in the cache."""
        offset_attributes = {k: v for k, v in pooling.items() if k == "include_last_offset"}
        return Op(
            BAG_PROBE,
            (self.keys, indices, offsets),
            (self.bag_slots, self.index_marks),
            offset_attributes,
        )

    def reading(self, lists: str) -> dict[str, Value]:
        """Return the arguments of reads about bags, for their pricing."""
        list_arguments: dict[str, Value] = {"lists": lists} if lists else {}
        slots = tuple(int(t.shape[0]) for t in self.bags)
        return {"found": self.bag_slots, "pooled": slots, "longest": self.longest, **list_arguments}


class Writer:
    """Builder of the ops that replace lookups, and of the tensors that exist before the step."""

    def __init__(self, graph: Graph, placement: TablePlacement) -> None:
        self.graph = graph
        self.placement = placement
        self.used_names = names_of(graph)

    def build(self, table_lookups: Sequence[Lookup]) -> tuple[list[Declared], tuple[Op, ...]]:
        """Return the caches and directories, and the ops in order."""
        weights = tuple(lookup.weight for lookup in table_lookups)
        indices = tuple(lookup.tensor("indices") for lookup in table_lookups)
        offsets = tuple(lookup.tensor("offsets") for lookup in table_lookups)
        staged = tuple(self._rows(lookup) for lookup in table_lookups)
        pools, rows = self._bag_caches(table_lookups), self._row_caches(table_lookups)
        reading, pooling = self._reading(), _pooling(table_lookups)
        first_ops: list[Op] = []
        last_ops: list[Op] = []
        if pools:
            first_ops.append(pools.probe(indices, offsets, pooling))
            reading |= {**pools.reading(self.placement.lists), "slots": pools.index_marks}
            pooling |= {"found": pools.bag_slots, "bags": pools.bags}
        if rows:
            slots = tuple(self._new_tensor("slots", "i64", i.shape) for i in indices)
            attributes: dict[str, Value] = {"wanted": pools.index_marks} if pools else {}
            first_ops.append(Op(PROBE, (rows.directories, indices), (slots,), attributes))
            capacities = tuple(int(t.shape[0]) for t in rows.rows)
            reading |= {"slots": slots, "cached": capacities, "policy": self.placement.policy}
            pooling |= {"held": rows.rows, "slots": slots}
            last_ops.append(self._fill(rows.directories, rows.rows, (indices, slots, staged)))
        elif pools:
            reading |= {"policy": self.placement.policy}
        outputs = tuple(lookup.leaf.outputs[0] for lookup in table_lookups)
        if pools:
            offset_attributes = {k: v for k, v in pooling.items() if k == "include_last_offset"}
            fill = self._fill(pools.keys, pools.bags, (indices, offsets, pools.bag_slots, outputs))
            last_ops.append(replace(fill, attributes={**fill.attributes, **offset_attributes}))
        read = Op(READ, (weights, indices), (staged,), reading)
        pool = Op(POOL, (staged, offsets), (outputs,), pooling)
        fills = last_ops if self.placement.policy != "static" else []
        declared = [d for caches in (rows, pools) if caches for d in caches.declared]
        return declared, (*first_ops, read, pool, *fills)

    def _row_caches(self, table_lookups: Sequence[Lookup]) -> RowCaches | None:
        """Return the caches of rows, if there are any."""
        if not any(self.placement.cached.get(lookup.name) for lookup in table_lookups):
            return None
        declared = [d for lookup in table_lookups for d in self._cache(lookup)]
        tensors = tuple(d.tensor for d in declared)
        return RowCaches(declared, tensors[::2], tensors[1::2])

    def _bag_caches(self, table_lookups: Sequence[Lookup]) -> BagCaches | None:
        """Return the caches of pooled bags, if there are any."""
        if not any(self.placement.pooled.get(lookup.name) for lookup in table_lookups):
            return None
        declared, longest = [], []
        for lookup in table_lookups:
            count = max(int(self.placement.pooled.get(lookup.name, 0)), 1)
            output = lookup.leaf.outputs[0]
            longest.append(longest_of(lookup.tensor("indices"), output))
            keys = self._new_tensor("keys", "i64", (count, 2 + longest[-1]))
            bags = self._new_tensor("bags", output.dtype, (count, int(output.shape[1])))
            declared += [
                Declared("state", keys, f"{lookup.name}.keys"),
                Declared("state", bags, f"{lookup.name}.bags"),
            ]
        tensors = tuple(d.tensor for d in declared)
        bag_slots = tuple(
            self._new_tensor("found", "i64", lookup.leaf.outputs[0].shape[:1])
            for lookup in table_lookups
        )
        index_marks = tuple(
            self._new_tensor("wanted", "i64", lookup.tensor("indices").shape)
            for lookup in table_lookups
        )
        return BagCaches(
            declared, tensors[::2], tensors[1::2], bag_slots, index_marks, tuple(longest)
        )

    def _fill(
        self,
        directories: tuple[Tensor, ...],
        stored: tuple[Tensor, ...],
        entries: tuple[tuple[Tensor, ...], ...],
    ) -> Op:
        """Return the op that stores rows that were read, or bags that were pooled."""
        written_names = frozenset(t.name for t in (*directories, *stored))
        policy = self.placement.policy
        attributes: dict[str, Value] = {} if policy == "lru" else {"policy": policy}
        return Op(
            FILL if len(entries) == 3 else BAG_FILL,
            (directories, stored, *entries),
            (),
            attributes,
            written_names,
        )

    def _reading(self) -> dict[str, Value]:
        """Return the arguments of reads that are not the schema's defaults."""
        placement = self.placement
        attributes: dict[str, Value] = {"tier": placement.tier}
        attributes |= {"pieces": placement.pieces} if placement.pieces > 1 else {}
        attributes |= {"sub_block": True} if placement.sub_block else {}
        return attributes | ({"load": placement.load} if placement.load else {})

    def _rows(self, lookup: Lookup) -> Tensor:
        """Return the tensor of the rows read, one for each index."""
        count = lookup.tensor("indices").shape[0]
        return self._new_tensor("rows", lookup.weight.dtype, (count, lookup.weight.shape[1]))

    def _cache(self, lookup: Lookup) -> list[Declared]:
        """Return a table's directory and its cache."""
        count = max(int(self.placement.cached.get(lookup.name, 0)), 1)
        directory = self._new_tensor("directory", "i64", (2, count))
        rows = self._new_tensor("held", lookup.weight.dtype, (count, int(lookup.weight.shape[1])))
        return [
            Declared("state", directory, f"{lookup.name}.directory"),
            Declared("state", rows, f"{lookup.name}.held"),
        ]

    def _new_tensor(self, name: str, dtype: str, shape: Sequence[int]) -> Tensor:
        unique_name = free_name(name, self.used_names)
        self.used_names.add(unique_name)
        return Tensor(unique_name, dtype, tuple(shape), unique_name, device=self.graph.device)
