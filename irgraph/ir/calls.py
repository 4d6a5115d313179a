"""Violations of an operator's schema by a call: operands, results, writes and devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from irgraph.ir.effects import may_alias
from irgraph.ir.op import Op, Value
from irgraph.ir.schema import Schema, accepts, schemas_of, written_by
from irgraph.ir.tensor import DeviceRef, Tensor, overlap
from irgraph.ir.tf32 import plain_name

MAX_LISTED_OVERLOADS = 3
"""Maximum number of overloads that a hint lists."""


def schema_error(op: Op, schemas: Sequence[Schema]) -> str:
    """Return the reason why no overload accepts a call, ``""`` if one does."""
    schemas = schemas if op.written else _without_out(schemas)
    accepting = [schema for schema in schemas if accepts(schema, op)]
    if not accepting:
        return _argument_error(op, schemas)
    marked = op.written & {tensor.name for tensor in op.inputs}
    matching = [schema for schema in accepting if written_by(schema, op) == marked]
    if not matching:
        return _write_error(marked, written_by(accepting[0], op))
    max_returns = max(len(schema.returns) for schema in matching)
    return (
        f"gives {_results(max_returns)}, not {len(op.results)}"
        if len(op.results) > max_returns
        else ""
    )


def _results(count: int) -> str:
    return f"{count or 'no'} result{'s' * (count != 1)}"


def _argument_error(op: Op, schemas: Sequence[Schema]) -> str:
    argument_names = {argument.name for schema in schemas for argument in schema.arguments}
    for name in op.attributes:
        if name not in argument_names:
            return f"has no argument {name}"
    max_operands = max(len(schema.arguments) for schema in schemas)
    if len(op.operands) > max_operands:
        limit = f"{max_operands} operand{'s' * (max_operands != 1)}"
        return f"takes {limit} at most, not {len(op.operands)}"
    missing = [_missing(schema, op) for schema in schemas]
    return (
        f"lacks its argument {missing[0]}" if all(missing) else "its operands do not fit its schema"
    )


def _missing(schema: Schema, op: Op) -> str:
    """Return the name of the first missing required argument, ``""`` if none is missing."""
    for argument in schema.arguments[len(op.operands) :]:
        if argument.default is None and argument.name not in op.attributes:
            return argument.name
    return ""


def _write_error(marked: frozenset[str], written: frozenset[str]) -> str:
    unmarked = sorted(written - marked)
    if unmarked:
        return f"writes %{unmarked[0]}, which is not marked: %{unmarked[0]}!"
    return f"only reads %{min(marked - written)}, which is marked as written"


def usage(schemas: Sequence[Schema]) -> str:
    """Return the signatures of an op's overloads, for a hint."""
    calls = [f"{s.name}({', '.join(a.name for a in s.arguments)})" for s in _without_out(schemas)]
    return "; ".join(list(dict.fromkeys(calls))[:MAX_LISTED_OVERLOADS])


def _without_out(schemas: Sequence[Schema]) -> Sequence[Schema]:
    """Return the overloads without an ``out`` argument, or else all overloads."""
    return [s for s in schemas if not any(a.name == "out" for a in s.arguments)] or schemas


def result_devices(op: Op) -> set[str]:
    """Return the devices on which a leaf with operands can place its results.

    These are the devices in its attributes, or else the devices of its operands.
    """
    devices = {str(value) for value in op.attributes.values() if isinstance(value, DeviceRef)}
    return devices or {tensor.device for tensor in op.inputs}


def overwritten_operand(op: Op, result: Tensor) -> Tensor | None:
    """Return an operand whose bytes a result overlaps although the op only allocates results."""
    if may_alias(op.name):
        return None
    return next((tensor for tensor in op.inputs if overlap(result, tensor)), None)


Shape = tuple[int, ...]

FACTORS = {"aten.mm": 0, "aten.bmm": 0, "aten.addmm": 1, "aten.baddbmm": 1}
"""Index of the first factor's operand in products of two matrices, or of batches of them."""


def shape_error(op: Op) -> str:
    """Return the error in the shapes of a call, ``""`` if they are valid or not known."""
    first = FACTORS.get(plain_name(op.name))
    expected: Shape | str | None
    if op.name.startswith("aten._foreach_"):
        return _foreach_error(op)
    if first is not None:
        expected = _product_shape(op, first)
    elif op.name == "aten.copy_":
        return _copy_error(op)
    elif op.name in INDEX_PUTS:
        return _index_put_error(op)
    elif is_pointwise(op.name) and all(isinstance(r, Tensor) for r in op.results):
        expected = broadcast([tensor.shape for tensor in op.inputs])
    else:
        return ""
    if isinstance(expected, str):
        return expected
    results = [*op.outputs, *(t for t in op.inputs if t.name in op.written)]
    for tensor in results:
        if expected is not None and tensor.shape != expected:
            return f"makes {_text(expected)}, not %{tensor.name}, {_text(tensor.shape)}"
    return ""


INDEX_PUTS = ("aten.index_put_", "aten.index_put", "aten._index_put_impl_")
"""Ops that write values to the elements at some indices."""


def _copy_error(op: Op) -> str:
    target, source = (value.shape for value in op.inputs[:2])
    expected = broadcast([target, source])
    if expected in (target, None):
        return ""
    return f"copies {_text(source)}, which does not broadcast to {_text(target)}"


def _index_put_error(op: Op) -> str:
    """Return the error in the shape of the values; masks select an unknown number of elements."""
    target, indices, values = (*op.operands, None, None, None)[:3]
    if not isinstance(target, Tensor) or not isinstance(values, Tensor):
        return ""
    if not isinstance(indices, tuple) or len(indices) > len(target.shape):
        return ""
    tensors = [index for index in indices if isinstance(index, Tensor)]
    if not tensors or any(index.dtype in ("bool", "u8") for index in tensors):
        return ""
    selected = broadcast([index.shape for index in tensors])
    if isinstance(selected, str) or selected is None:
        return selected or ""
    expected = _indexed_shape(target.shape, indices, selected)
    if broadcast([expected, values.shape]) == expected:
        return ""
    return f"writes {_text(values.shape)}, which does not broadcast to {_text(expected)}"


def _indexed_shape(shape: Shape, indices: tuple[Value, ...], selected: Shape) -> Shape:
    """Return the shape of the elements at some indices: adjacent indices stay in place."""
    padded = [*indices, *(None for _ in shape[len(indices) :])]
    axes = [axis for axis, index in enumerate(padded) if isinstance(index, Tensor)]
    adjoin = axes[-1] - axes[0] + 1 == len(axes)
    first = axes[0] if adjoin else 0
    rest = [size for axis, size in enumerate(shape) if axis not in axes]
    return (*rest[:first], *selected, *rest[first:])


def _foreach_error(op: Op) -> str:
    """Return the error in the shapes of lists of operands, compared element by element."""
    lists = [value for value in op.operands if isinstance(value, tuple)]
    for operand in op.operands:
        if isinstance(operand, Tensor) and operand.shape:
            return f"takes a single number for all, not %{operand.name}, {_text(operand.shape)}"
    for row in zip(*lists, strict=False):
        shapes = [tensor.shape for tensor in row if isinstance(tensor, Tensor)]
        expected = broadcast(shapes)
        if isinstance(expected, str):
            return expected
        if op.written and expected != shapes[0]:
            return f"makes {_text(expected or ())}, not %{row[0].name}, {_text(shapes[0])}"
    return ""


@cache
def is_pointwise(name: str) -> bool:
    """Return whether torch declares every overload of an op without ``out`` as pointwise."""
    schemas = schemas_of(name)
    return bool(schemas) and all(schema.pointwise for schema in _without_out(schemas))


def broadcast(shapes: list[Shape]) -> Shape | str | None:
    """Return the broadcast shape, the reason why shapes do not broadcast, or ``None`` for none."""
    if not shapes:
        return None
    rank = max(map(len, shapes))
    sizes: list[int] = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if sizes[axis] == 1:
                sizes[axis] = size
            elif size not in (1, sizes[axis]):
                return f"its operands do not broadcast: {', '.join(map(_text, shapes))}"
    return tuple(sizes)


def _product_shape(op: Op, first: int) -> Shape | str | None:
    factors = [value.shape for value in op.operands[first:] if isinstance(value, Tensor)]
    if len(factors) != 2:
        return None
    a, b = factors
    rank = 3 if op.base.startswith("b") else 2
    if len(a) != rank or len(b) != rank or a[-1] != b[-2] or a[:-2] != b[:-2]:
        return f"its factors do not fit: {_text(a)} and {_text(b)}"
    return (*a[:-1], b[-1])


def _text(shape: Shape) -> str:
    return f"[{', '.join(str(int(size)) for size in shape)}]"


def call_error(op: Op) -> str:
    """Return the reason why torch would refuse a new call, ``""`` if it would not or is unknown.

    Shapes must fit, no element may be written twice, and no written element may be read as a
    different element.
    """
    return shape_error(op) or _write_conflict(op)


def _write_conflict(op: Op) -> str:
    for tensor in op.inputs if op.written else ():
        if tensor.name not in op.written:
            continue
        pairs = zip(tensor.shape, tensor.strides or (), strict=False)
        if any(step == 0 and size > 1 for size, step in pairs):
            return f"writes %{tensor.name}, several elements of which are the same bytes"
        for other in op.inputs if is_pointwise(op.name) else ():
            if _overlap_partially(tensor, other):
                return (
                    f"writes %{tensor.name}, which shares some bytes with its operand %{other.name}"
                )
    return ""


def _overlap_partially(a: Tensor, b: Tensor) -> bool:
    """Return whether two contiguous tensors share bytes, as different elements."""
    same = (a.offset, a.shape, a.strides, a.dtype) == (b.offset, b.shape, b.strides, b.dtype)
    return not same and a.contiguous and b.contiguous and overlap(a, b)
