"""Classes of calls that have equal prices at any sizes, each represented by one call."""

from __future__ import annotations

from collections.abc import Hashable

from msgspec.structs import replace

from irgraph.ir.compare import call_form
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Result, Value
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
            key = op if is_unique else call_form(op, _Numbers().form)
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


class _Numbers:
    """Numbers of the tensors and buffers of a call, in the order of their first use."""

    def __init__(self) -> None:
        self._tensors: dict[str, int] = {}
        self._buffers: dict[str, int] = {}

    def form(self, value: Value | Result) -> Hashable:
        """Return all that a price depends on of a value, sizes as expressions."""
        if not isinstance(value, Tensor):
            return type(value), str(value)
        layout = (*value.shape, *(value.strides or ()), value.offset)
        return (
            value.dtype,
            value.rank,
            tuple(map(str, layout)),
            value.device,
            self._buffers.setdefault(value.buffer, len(self._buffers)),
            self._tensors.setdefault(value.name, len(self._tensors)),
        )
