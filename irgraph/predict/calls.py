"""Classes of calls that have equal prices at any sizes, each represented by one call."""

from __future__ import annotations

from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor


class CallClasses:
    """Classes of calls of a graph with equal prices.

    Attributes:
        graph: the graph with one call of each class; valid for pricing only.
        lookups_differ: whether embedding tables have different index distributions.
        representative_of: for each top-level call in launch order, the position of its
            representative.
    """

    def __init__(self, graph: Graph, *, lookups_differ: bool) -> None:
        """Set ``lookups_differ`` if embedding tables have different index distributions."""
        self.lookups_differ = lookups_differ
        index_by_key: dict[object, int] = {}
        representatives: list[Op] = []
        self.representative_of: list[int] = []
        for op in graph.top_level():
            is_unique = is_sparse(op) or (lookups_differ and _has_indices(op))
            key = op if is_unique else _key(op, {})
            if key not in index_by_key:
                index_by_key[key] = len(representatives)
                representatives.append(op)
            self.representative_of.append(index_by_key[key])
        self.graph = replace(graph, ops=tuple(representatives))


def is_sparse(op: Op) -> bool:
    """Return whether a price depends on more than the call: on values of sparse tensors."""
    tensors = (t for inner in op.walk() for t in (*inner.inputs, *inner.outputs))
    return any(t.strides is not None and not any(t.strides) for t in tensors)


def _has_indices(op: Op) -> bool:
    return any(t.dtype in ("i64", "i32") for inner in op.walk() for t in inner.inputs)


def _key(op: Op, names: dict[str, int]) -> object:
    """Return the key of everything that the price of a call depends on, sizes as expressions."""
    return (
        op.name,
        tuple(_sketch(v, op, names) for v in op.operands),
        tuple(_sketch(v, op, names) for v in op.results),
        tuple((k, _sketch(v, op, names)) for k, v in op.attributes.items()),
        tuple(_key(child, names) for child in op.body),
    )


def _sketch(value: object, op: Op, names: dict[str, int]) -> object:
    if isinstance(value, Tensor):
        buffer_number = names.setdefault("$" + value.buffer, len(names))
        tensor_number = names.setdefault(value.name, len(names))
        sizes = [str(size) for size in value.shape], [str(step) for step in value.strides or ()]
        is_written = value.name in op.written
        return (
            value.dtype,
            *map(tuple, sizes),
            str(value.offset),
            value.device,
            buffer_number,
            tensor_number,
            is_written,
        )
    if isinstance(value, tuple):
        return tuple(_sketch(item, op, names) for item in value)
    return (type(value).__name__, str(value))
