"""Numbers that change from step to step, such as Adam's corrections, whatever the batch size."""

from __future__ import annotations

from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor


def steady(graph: Graph, first: Graph, again: Graph) -> Graph:
    """Return a step with the numbers of ``first`` where another step of its size had other ones."""
    if not len(graph.ops) == len(first.ops) == len(again.ops):
        return graph
    return replace(graph, ops=tuple(map(_op, graph.ops, first.ops, again.ops)))


def _op(op: Op, first: Op, again: Op) -> Op:
    same = op.name == first.name == again.name
    if not same or not len(op.body) == len(first.body) == len(again.body):
        return op
    changing = {
        key: value
        for key, value in first.attributes.items()
        if key in op.attributes and _is_plain(value) and value != again.attributes.get(key)
    }
    body = tuple(map(_op, op.body, first.body, again.body))
    return replace(op, attributes={**op.attributes, **changing}, body=body)


def _is_plain(value: Value) -> bool:
    """Return whether a value holds no tensors, which are others in every step."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return not isinstance(value, Tensor)
