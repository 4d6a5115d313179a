"""A graph in f32: the same steps without what short floating types round away."""

from __future__ import annotations

from dataclasses import replace

from irgraph.ir.dtypes import DIGITS, ITEMSIZE
from irgraph.ir.edit import Edit, map_value
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import DType, Tensor
from irgraph.ir.tf32 import PLAIN, factors, plain_name, products_in_tf32

SHORT = tuple(name for name, digits in DIGITS.items() if digits < DIGITS["f32"])
"""Types that are computed as f32."""


def short_types(graph: Graph) -> set[str]:
    """Return the short floating types that tensors of a graph have, or products compute in."""
    computed = {"tf32"} if products_in_tf32(graph) else set()
    return computed | {tensor.dtype for tensor in graph.by_name.values()} & set(SHORT)


def widened(graph: Graph) -> Graph:
    """Return the graph with f32 in place of every shorter floating type."""
    if not short_types(graph):
        return graph
    declared = tuple(replace(d, tensor=_tensor(d.tensor)) for d in graph.tensors)
    returned = map_value(graph.returned, _tensor)
    return replace(graph, tensors=declared, ops=tuple(map(_op, graph.ops)), returned=returned)


def spelled_out(graph: Graph) -> Graph:
    """Return the graph with each factor that a product rounds to tf32 as a tensor of that type."""
    edit = Edit(graph)
    for op in graph.leaves():
        if op.name not in PLAIN:
            continue
        operands = list(op.operands)
        for place in factors(op):
            whole = operands[place]
            assert isinstance(whole, Tensor)
            name = f"{op.outputs[0].name}.{place}"
            rounded = Tensor(name, "tf32", whole.shape, name, device=whole.device)
            edit.put(Op("aten.clone", (whole,), (rounded,)), before=op)
            operands[place] = rounded
        edit.put(replace(op, name=PLAIN[op.name], operands=tuple(operands)), before=op)
        edit.remove(op)
    return edit.commit()


def _tensor(tensor: Tensor) -> Tensor:
    if tensor.dtype not in SHORT:
        return tensor
    offset = tensor.offset * ITEMSIZE["f32"] // tensor.itemsize
    return replace(tensor, dtype="f32", offset=offset)


def _literal(name: str, value: Value) -> Value:
    if isinstance(value, DType):
        return DType("f32") if value in SHORT else value
    if name == "half_to_float":
        return False
    return map_value(value, _tensor)


def _op(op: Op) -> Op:
    return replace(
        op,
        name=plain_name(op.name),
        operands=map_value(op.operands, _tensor),
        results=map_value(op.results, _tensor),
        attributes={name: _literal(name, value) for name, value in op.attributes.items()},
        body=tuple(map(_op, op.body)),
    )
