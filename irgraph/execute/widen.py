"""Converts a graph to f64 or f32: the same step without the roundings of short floating types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_float
from itertools import chain
from types import MappingProxyType

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

NO_NUMBERS: Mapping[float, float] = MappingProxyType({})


def short_types(graph: Graph) -> set[str]:
    """Return the short floating types of tensors and products in a graph.

    Types within quantised layers are omitted.
    """
    computed = {"tf32"} if products_in_tf32(graph) else set()
    layer_names = short_layer_tensors(graph)
    dtypes = {tensor.dtype for name, tensor in graph.by_name.items() if name not in layer_names}
    return computed | dtypes & set(SHORT)


def widen_together(graphs: Sequence[Graph], wide: str) -> tuple[Graph, ...]:
    """Return graphs with ``wide`` (f32 or f64) instead of every shorter floating type.

    The ops of short types round their numbers to f32. So numbers that f32 rounds to one of them
    become equal: 9.999999747378752e-06, which torch passes on for 1e-05, becomes 1e-05.
    """
    numbers = _unrounded_numbers(graphs)
    return tuple(widen_types(graph, wide, numbers) for graph in graphs)


def _unrounded_numbers(graphs: Sequence[Graph]) -> dict[float, float]:
    """Return a number that f32 rounds, by the number to which it does, if graphs have both."""
    numbers = dict.fromkeys(chain.from_iterable(map(_short_numbers, graphs)))
    original = {c_float(number).value: number for number in numbers if not _is_f32(number)}
    return {number: original[number] for number in numbers if number in original}


def _short_numbers(graph: Graph) -> Iterator[float]:
    """Yield the numbers among arguments of ops that compute in types shorter than f64."""
    for op in graph.leaves():
        if _rounds_numbers(op):
            for value in (*op.operands, *op.attributes.values()):
                items = value if isinstance(value, tuple) else (value,)
                yield from (item for item in items if isinstance(item, float))


def _rounds_numbers(op: Op) -> bool:
    """Return whether an op rounds its numbers to f32: no tensor of it has a wider type."""
    return not any(t.dtype in ("f64", "c128") for t in (*op.inputs, *op.outputs))


def _is_f32(number: float) -> bool:
    return c_float(number).value == number


def widen_types(
    graph: Graph, wide: str = "f32", numbers: Mapping[float, float] = NO_NUMBERS
) -> Graph:
    """Return the graph with ``wide`` (f32 or f64) instead of every shorter floating type.

    Short types within quantised layers are preserved: their ops support no others. ``numbers``
    replace others among the arguments of ops that compute in short types.
    """
    widener = _Widener(WIDE[wide], short_layer_tensors(graph), numbers)
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
    """Changes types of tensors and arguments, names of products, and ``numbers`` of short ops.

    ``unchanged`` tensors retain their types.
    """

    types: Mapping[str, str]
    unchanged: frozenset[str]
    numbers: Mapping[float, float]

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

    def number(self, value: Value) -> Value:
        """Return the replacement of a number, alone or in a list, or the value itself."""
        if isinstance(value, tuple):
            return tuple(map(self.number, value))
        return self.numbers.get(value, value) if isinstance(value, float) else value

    def op(self, op: Op) -> Op:
        if self.numbers and not op.body and _rounds_numbers(op):
            op = self._with_numbers(op)
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

    def _with_numbers(self, op: Op) -> Op:
        attributes = {name: self.number(value) for name, value in op.attributes.items()}
        return replace(op, operands=tuple(map(self.number, op.operands)), attributes=attributes)
