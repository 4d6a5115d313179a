"""Converts a graph to f64 or f32: the same step without the roundings of short floating types."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.dtypes import DIGITS, ITEMSIZE
from irgraph.ir.edit import Edit, map_value
from irgraph.ir.graph import Graph
from irgraph.ir.narrow.layers import short_layer_tensors
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import DType, Tensor
from irgraph.ir.tf32 import PLAIN, factors, plain_name, products_in_tf32

SHORT = tuple(name for name, digits in DIGITS.items() if digits < DIGITS["f32"])
"""Types shorter than f32."""

WIDE = {
    "f32": dict.fromkeys(SHORT, "f32"),
    "f64": dict.fromkeys((*SHORT, "f32"), "f64") | {"c64": "c128"},
}
"""Wide type by original type, for each type to which a graph can be widened."""


def short_types(graph: Graph) -> set[str]:
    """Return the short floating types of tensors and products in a graph.

    Types within quantised layers are omitted.
    """
    computed = {"tf32"} if products_in_tf32(graph) else set()
    layer_names = short_layer_tensors(graph)
    dtypes = {tensor.dtype for name, tensor in graph.by_name.items() if name not in layer_names}
    return computed | dtypes & set(SHORT)


def widen_types(graph: Graph, wide: str = "f32") -> Graph:
    """Return the graph with ``wide`` (f32 or f64) instead of every shorter floating type.

    Short types within quantised layers are preserved: their ops support no others.
    """
    widener = _Widener(WIDE[wide], short_layer_tensors(graph))
    declared = tuple(replace(d, tensor=widener.tensor(d.tensor)) for d in graph.tensors)
    returned = map_value(graph.returned, widener.tensor)
    return replace(
        graph, tensors=declared, ops=tuple(map(widener.op, graph.ops)), returned=returned
    )


def with_explicit_tf32(graph: Graph) -> Graph:
    """Return the graph with a tf32 tensor for each factor that a product rounds to tf32."""
    edit = Edit(graph)
    for op in graph.leaves():
        if op.name not in PLAIN:
            continue
        operands = list(op.operands)
        for place in factors(op):
            factor = operands[place]
            assert isinstance(factor, Tensor)
            name = f"{op.outputs[0].name}.{place}"
            rounded = Tensor(name, "tf32", factor.shape, name, device=factor.device)
            edit.insert(Op("aten.clone", (factor,), (rounded,)), before=op)
            operands[place] = rounded
        edit.insert(replace(op, name=PLAIN[op.name], operands=tuple(operands)), before=op)
        edit.remove(op)
    return edit.commit()


class _Widener(Struct, frozen=True):
    """Changes the types of tensors, arguments and products, except ``unchanged`` tensors."""

    types: Mapping[str, str]
    unchanged: frozenset[str]

    def tensor(self, tensor: Tensor) -> Tensor:
        wide = self.types.get(tensor.dtype)
        if wide is None or tensor.name in self.unchanged:
            return tensor
        offset = tensor.offset * ITEMSIZE[wide] // tensor.itemsize
        return replace(tensor, dtype=wide, offset=offset)

    def literal(self, name: str, value: Value) -> Value:
        if isinstance(value, DType):
            return DType(self.types.get(value, value))
        if name == "half_to_float":
            return False
        return map_value(value, self.tensor)

    def op(self, op: Op) -> Op:
        is_unchanged = any(t.name in self.unchanged for t in op.outputs)
        return replace(
            op,
            name=plain_name(op.name),
            operands=map_value(op.operands, self.tensor),
            results=map_value(op.results, self.tensor),
            attributes=op.attributes
            if is_unchanged
            else {name: self.literal(name, value) for name, value in op.attributes.items()},
            body=tuple(map(self.op, op.body)),
        )
