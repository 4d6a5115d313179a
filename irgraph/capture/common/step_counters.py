"""Numbers that change between steps of one batch size, such as Adam's bias corrections."""

from __future__ import annotations

from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor


def with_counters_of(graph: Graph, first: Graph, second: Graph) -> Graph:
    """Return a step with the attributes of ``first`` that ``second``, of the same size, changes."""
    if not len(graph.ops) == len(first.ops) == len(second.ops):
        return graph
    return replace(graph, ops=tuple(map(_with_counters, graph.ops, first.ops, second.ops)))


def _with_counters(op: Op, first: Op, second: Op) -> Op:
    same_name = op.name == first.name == second.name
    if not same_name or not len(op.body) == len(first.body) == len(second.body):
        return op
    counters = {
        key: value
        for key, value in first.attributes.items()
        if key in op.attributes and _has_no_tensors(value) and value != second.attributes.get(key)
    }
    body = tuple(map(_with_counters, op.body, first.body, second.body))
    return replace(op, attributes={**op.attributes, **counters}, body=body)


def _has_no_tensors(value: Value) -> bool:
    """Return whether a value has no tensors, which differ in every step."""
    if isinstance(value, tuple):
        return all(map(_has_no_tensors, value))
    return not isinstance(value, Tensor)
