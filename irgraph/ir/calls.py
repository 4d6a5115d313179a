"""How a call violates its operator's schema: operands, results, writes and devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from irgraph.ir.effects import may_alias
from irgraph.ir.op import Op
from irgraph.ir.schema import Schema, schemas_of, takes, written_by
from irgraph.ir.tensor import DeviceRef, Tensor, overlap
from irgraph.ir.tf32 import plain_name

SHOWN = 3
"""Overloads that a hint names."""


def misfit(op: Op, schemas: Sequence[Schema]) -> str:
    """Return why no overload takes a call, ``""`` where one does."""
    schemas = schemas if op.written else _plain(schemas)
    fitting = [schema for schema in schemas if takes(schema, op)]
    if not fitting:
        return _refused(op, schemas)
    marked = op.written & {tensor.name for tensor in op.inputs}
    right = [schema for schema in fitting if written_by(schema, op) == marked]
    if not right:
        return _miswritten(marked, written_by(fitting[0], op))
    most = max(len(schema.returns) for schema in right)
    return f"gives {_results(most)}, not {len(op.results)}" if len(op.results) > most else ""


def _results(count: int) -> str:
    return f"{count or 'no'} result{'s' * (count != 1)}"


def _refused(op: Op, schemas: Sequence[Schema]) -> str:
    known = {argument.name for schema in schemas for argument in schema.arguments}
    for name in op.attributes:
        if name not in known:
            return f"has no argument {name}"
    most = max(len(schema.arguments) for schema in schemas)
    if len(op.operands) > most:
        return f"takes {most} operand{'s' * (most != 1)} at most, not {len(op.operands)}"
    missing = [_missing(schema, op) for schema in schemas]
    return (
        f"lacks its argument {missing[0]}" if all(missing) else "its operands do not fit its schema"
    )


def _missing(schema: Schema, op: Op) -> str:
    """Return the first required argument that is missing."""
    for argument in schema.arguments[len(op.operands) :]:
        if argument.default is None and argument.name not in op.attributes:
            return argument.name
    return ""


def _miswritten(marked: frozenset[str], written: frozenset[str]) -> str:
    unsaid = sorted(written - marked)
    if unsaid:
        return f"writes %{unsaid[0]}, which is not marked: %{unsaid[0]}!"
    return f"only reads %{min(marked - written)}, which is marked as written"


def usage(schemas: Sequence[Schema]) -> str:
    """Return how an op is called: its overloads with their arguments."""
    calls = [f"{s.name}({', '.join(a.name for a in s.arguments)})" for s in _plain(schemas)]
    return "; ".join(list(dict.fromkeys(calls))[:SHOWN])


def _plain(schemas: Sequence[Schema]) -> Sequence[Schema]:
    """Return the overloads that write no ``out``, if there are any."""
    return [s for s in schemas if not any(a.name == "out" for a in s.arguments)] or schemas


def reachable(op: Op) -> set[str]:
    """Return the devices on which a leaf with operands can make its results.

    That is the device it names, or else those of its operands.
    """
    named = {str(value) for value in op.attributes.values() if isinstance(value, DeviceRef)}
    return named or {tensor.device for tensor in op.inputs}


def overwritten(op: Op, result: Tensor) -> Tensor | None:
    """Return the operand whose bytes a result takes, of an op that only makes new tensors."""
    if may_alias(op.name):
        return None
    return next((tensor for tensor in op.inputs if overlap(result, tensor)), None)


Shape = tuple[int, ...]

FACTORS = {"aten.mm": 0, "aten.bmm": 0, "aten.addmm": 1, "aten.baddbmm": 1}
"""Products of two matrices, or of batches of them, and which operand is the first factor."""


def wrong_shape(op: Op) -> str:
    """Return what is wrong with the shapes of a call, ``""`` if nothing is, or it is not known."""
    first = FACTORS.get(plain_name(op.name))
    wanted: Shape | str | None
    if op.name.startswith("aten._foreach_"):
        return _foreach(op)
    if first is not None:
        wanted = _product(op, first)
    elif is_pointwise(op.name) and all(isinstance(r, Tensor) for r in op.results):
        wanted = broadcast([tensor.shape for tensor in op.inputs])
    else:
        return ""
    if isinstance(wanted, str):
        return wanted
    made = [*op.outputs, *(t for t in op.inputs if t.name in op.written)]
    for tensor in made:
        if wanted is not None and tensor.shape != wanted:
            return f"makes {_text(wanted)}, not %{tensor.name}, {_text(tensor.shape)}"
    return ""


def _foreach(op: Op) -> str:
    """Return what is wrong with lists of operands, taken one by one."""
    lists = [value for value in op.operands if isinstance(value, tuple)]
    for given in op.operands:
        if isinstance(given, Tensor) and given.shape:
            return f"takes a single number for all, not %{given.name}, {_text(given.shape)}"
    for row in zip(*lists, strict=False):
        shapes = [tensor.shape for tensor in row if isinstance(tensor, Tensor)]
        wanted = broadcast(shapes)
        if isinstance(wanted, str):
            return wanted
        if op.written and wanted != shapes[0]:
            return f"makes {_text(wanted or ())}, not %{row[0].name}, {_text(shapes[0])}"
    return ""


@cache
def is_pointwise(name: str) -> bool:
    """Return whether torch says that every form of an op works element by element."""
    schemas = schemas_of(name)
    return bool(schemas) and all(schema.pointwise for schema in _plain(schemas))


def broadcast(shapes: list[Shape]) -> Shape | str | None:
    """Return the shape to which some shapes broadcast, or why they do not."""
    if not shapes:
        return None
    rank = max(map(len, shapes))
    found: list[int] = [1] * rank
    for shape in shapes:
        for place, size in enumerate(shape, rank - len(shape)):
            if found[place] == 1:
                found[place] = size
            elif size not in (1, found[place]):
                return f"its operands do not broadcast: {', '.join(map(_text, shapes))}"
    return tuple(found)


def _product(op: Op, first: int) -> Shape | str | None:
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


def wrong_call(op: Op) -> str:
    """Return why torch would refuse a new call, ``""`` if it would not, or it is not known.

    Besides shapes, no element may be written twice, nor be read as another one that is written.
    """
    return wrong_shape(op) or _clash(op)


def _clash(op: Op) -> str:
    for tensor in op.inputs if op.written else ():
        if tensor.name not in op.written:
            continue
        pairs = zip(tensor.shape, tensor.strides or (), strict=False)
        if any(step == 0 and size > 1 for size, step in pairs):
            return f"writes %{tensor.name}, several elements of which are the same bytes"
        for other in op.inputs if is_pointwise(op.name) else ():
            if _in_part(tensor, other):
                return (
                    f"writes %{tensor.name}, which shares some bytes with its operand %{other.name}"
                )
    return ""


def _in_part(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors without gaps share some of their bytes, as other elements."""
    same = (a.offset, a.shape, a.strides, a.dtype) == (b.offset, b.shape, b.strides, b.dtype)
    return not same and a.contiguous and b.contiguous and overlap(a, b)
