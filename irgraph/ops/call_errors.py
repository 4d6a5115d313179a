"""Violations of an operator's schema by a call: operands, results, writes and devices."""

from __future__ import annotations

from collections.abc import Sequence

from irgraph.ir.effects import may_alias
from irgraph.ir.op import Op
from irgraph.ir.schema import Schema, accepts, written_by
from irgraph.ir.tensor import DeviceRef, Tensor, overlap
from irgraph.ops.book import meaning_of, operator_of, resolve
from irgraph.ops.call import Call
from irgraph.ops.kinds.elements import is_tagged
from irgraph.ops.sizes import size_error

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


def shape_error(op: Op) -> str:
    """Return how the sizes of a call contradict its declaration, ``""`` if they do not."""
    operator = operator_of(op.name)
    if operator is None or meaning_of(op) is not None:
        return ""
    call = Call(op)
    meaning = resolve(operator, call)
    return size_error(call, meaning) if meaning is not None else ""


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
        for other in op.inputs if is_tagged(op.name) else ():
            if _overlap_partially(tensor, other):
                return (
                    f"writes %{tensor.name}, which shares some bytes with its operand %{other.name}"
                )
    return ""


def _overlap_partially(a: Tensor, b: Tensor) -> bool:
    """Return whether two contiguous tensors share bytes, as different elements."""
    same = (a.offset, a.shape, a.strides, a.dtype) == (b.offset, b.shape, b.strides, b.dtype)
    return not same and a.contiguous and b.contiguous and overlap(a, b)
