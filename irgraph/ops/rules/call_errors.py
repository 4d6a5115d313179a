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
    if not op.written:
        schemas = _without_out(schemas)
    accepting = [schema for schema in schemas if accepts(schema, op)]
    if not accepting:
        return _argument_error(op, schemas)
    operand_names = {tensor.name for tensor in op.inputs}
    marked = op.written & operand_names
    matching = [schema for schema in accepting if written_by(schema, op) == marked]
    if not matching:
        return _write_error(marked, written_by(accepting[0], op))
    count = len(op.results)
    max_returns = max(len(schema.returns) for schema in matching)
    if count > max_returns:
        return f"gives {_counted(max_returns, 'result')}, not {count}"
    return ""


def _counted(count: int, noun: str) -> str:
    suffix = "" if count == 1 else "s"
    return f"{count or 'no'} {noun}{suffix}"


def _argument_error(op: Op, schemas: Sequence[Schema]) -> str:
    argument_names = {argument.name for schema in schemas for argument in schema.arguments}
    for name in op.attributes:
        if name not in argument_names:
            return f"has no argument {name}"
    count = len(op.operands)
    max_operands = max(len(schema.arguments) for schema in schemas)
    if count > max_operands:
        suffix = "" if max_operands == 1 else "s"
        return f"takes {max_operands} operand{suffix} at most, not {count}"
    missing = [_missing(schema, op) for schema in schemas]
    if all(missing):
        return f"lacks its argument {missing[0]}"
    return "its operands do not fit its schema"


def _missing(schema: Schema, op: Op) -> str:
    """Return the name of the first missing required argument, ``""`` if none is missing."""
    for argument in schema.arguments[len(op.operands) :]:
        is_required = argument.default is None
        if is_required and argument.name not in op.attributes:
            return argument.name
    return ""


def _write_error(marked: frozenset[str], written: frozenset[str]) -> str:
    unmarked = written - marked
    if unmarked:
        name = min(unmarked)
        return f"writes %{name}, which is not marked: %{name}!"
    return f"only reads %{min(marked - written)}, which is marked as written"


def usage(schemas: Sequence[Schema]) -> str:
    """Return the signatures of an op's overloads, for a hint."""
    signatures: dict[str, None] = {}
    for schema in _without_out(schemas):
        names = [argument.name for argument in schema.arguments]
        signatures[f"{schema.name}({', '.join(names)})"] = None
    return "; ".join(list(signatures)[:MAX_LISTED_OVERLOADS])


def _without_out(schemas: Sequence[Schema]) -> Sequence[Schema]:
    """Return the overloads without an ``out`` argument, or else all overloads."""
    remaining = [schema for schema in schemas if not schema.has_out]
    return remaining or schemas


def result_devices(op: Op) -> set[str]:
    """Return the devices on which a leaf with operands can place its results.

    These are the devices in its attributes, or else the devices of its operands.
    """
    values = op.attributes.values()
    devices = {str(value) for value in values if isinstance(value, DeviceRef)}
    return devices or {tensor.device for tensor in op.inputs}


def overwritten_operand(op: Op, result: Tensor) -> Tensor | None:
    """Return an operand whose bytes a result overlaps although the op only allocates results."""
    if may_alias(op.name):
        return None
    overlapping = (tensor for tensor in op.inputs if overlap(result, tensor))
    return next(overlapping, None)


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
    if not op.written:
        return ""
    written = [tensor for tensor in op.inputs if tensor.name in op.written]
    for tensor in written:
        if _repeats_elements(tensor):
            return f"writes %{tensor.name}, several elements of which are the same bytes"
        if not is_tagged(op.name):
            continue
        for other in op.inputs:
            if _overlap_partially(tensor, other):
                conflict = f"shares some bytes with its operand %{other.name}"
                return f"writes %{tensor.name}, which {conflict}"
    return ""


def _repeats_elements(tensor: Tensor) -> bool:
    if tensor.strides is None:
        return False
    pairs = zip(tensor.shape, tensor.strides, strict=False)
    return any(step == 0 and size > 1 for size, step in pairs)


def _overlap_partially(a: Tensor, b: Tensor) -> bool:
    """Return whether two contiguous tensors share bytes, as different elements."""
    if not a.contiguous or not b.contiguous or not overlap(a, b):
        return False
    first = (a.offset, a.shape, a.strides, a.dtype)
    second = (b.offset, b.shape, b.strides, b.dtype)
    return first != second
