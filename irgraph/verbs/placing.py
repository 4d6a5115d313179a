"""The ops that stand in place of lookups of tables on another tier, and what they need before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from irgraph.ir.edit import free_name, names_of
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.narrow.ops import FORMAT_OF, ROWS_LOOKUP
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.verbs.sharding.tables import lookups

PROBE, READ, POOL, FILL = (f"irgraph.tier_{name}" for name in ("probe", "read", "pool", "fill"))


def placeable(graph: Graph) -> Iterator[tuple[str, Tensor, Op]]:
    """Yield the name, the rows and the op of every lookup of bags, in narrow rows too."""
    yield from lookups(graph)
    labels = {d.tensor.buffer: d.label or d.tensor.name for d in graph.tensors}
    for op in graph.leaves():
        if kind_of(op) and op.inputs[0].rank == 2:
            weight = op.inputs[0]
            yield labels.get(weight.buffer, weight.name), weight, op


def kind_of(op: Op) -> str:
    """Return the format of the rows that a lookup reads, ``""`` where they are plain elements."""
    if op.name == ROWS_LOOKUP and op.inputs:
        return op.inputs[0].dtype
    return FORMAT_OF.get(op.name, "") if op.inputs else ""


class Where(Struct, frozen=True):
    """Where tables are put.

    Attributes:
        tier: its name, or a path.
        pieces: of it, over which rows are spread.
        cached: rows of each table, by its name, that the cache holds; none or 0 for no cache.
        policy: ``lru``, ``lfu``, or ``static`` for rows that were chosen by their popularity.
        sub_block: whether reads ask for the rows alone, not for whole blocks.
        load: share of the tier's reads a second that others take.
    """

    tier: str
    pieces: int = 1
    cached: Mapping[str, int] = {}
    policy: str = "lru"
    sub_block: bool = False
    load: float = 0.0


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


class Writer:
    """Writes the ops that stand in place of lookups, and what exists before the step for them."""

    def __init__(self, graph: Graph, where: Where) -> None:
        self.graph = graph
        self.where = where
        self.taken = names_of(graph)

    def written(self, chosen: Sequence[Lookup]) -> tuple[list[Declared], tuple[Op, ...]]:
        """Return the caches and directories, and the ops in order."""
        where = self.where
        caching = any(where.cached.get(one.name) for one in chosen)
        weights = tuple(one.weight for one in chosen)
        indices = tuple(one.tensor("indices") for one in chosen)
        offsets = tuple(one.tensor("offsets") for one in chosen)
        plain = self._reading()
        staged = tuple(self._rows(one) for one in chosen)
        pooling = _pooling(chosen)
        bags = tuple(one.leaf.outputs[0] for one in chosen)
        if not caching:
            read = Op(READ, (weights, indices), (staged,), plain)
            return [], (read, Op(POOL, (staged, offsets), (bags,), pooling))
        declared = [d for one in chosen for d in self._cache(one)]
        directories = tuple(d.tensor for d in declared[::2])
        held = tuple(d.tensor for d in declared[1::2])
        slots = tuple(self._fresh("slots", "i64", i.shape) for i in indices)
        rows = tuple(int(t.shape[0]) for t in held)
        plain |= {"slots": slots, "cached": rows, "policy": where.policy}
        ops = [
            Op(PROBE, (directories, indices), (slots,)),
            Op(READ, (weights, indices), (staged,), plain),
            Op(POOL, (staged, offsets), (bags,), {"held": held, "slots": slots, **pooling}),
        ]
        if where.policy != "static":
            ops.append(self._fill(directories, held, (indices, slots, staged)))
        return declared, tuple(ops)

    def _fill(
        self,
        directories: tuple[Tensor, ...],
        held: tuple[Tensor, ...],
        read: tuple[tuple[Tensor, ...], ...],
    ) -> Op:
        """Return the op that keeps what was read: indices, their slots, rows."""
        written = frozenset(t.name for t in (*directories, *held))
        policy = self.where.policy
        given: dict[str, Value] = {} if policy == "lru" else {"policy": policy}
        return Op(FILL, (directories, held, *read), (), given, written)

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
