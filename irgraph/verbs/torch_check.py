"""Asks torch whether ops take the sizes that a resized dimension gives them."""

from __future__ import annotations

import sys
from collections import OrderedDict

from irgraph.ir.calls import broadcast, is_pointwise
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Result, Value, memoize, tensors_in
from irgraph.ir.tensor import Tensor
from irgraph.shapes import ShapeError, plain_sizes
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.shape_rules import shapes_by_rule

Shapes = list[tuple[int, ...]]


def check_sizes(before: Graph, after: Graph) -> None:
    """Refuse a graph at other dimensions where torch refuses an op, or gives it another size.

    Asked is only about ops that torch's meta device gets right as they were.
    """
    sound = _validated_signatures(after)
    for was, now in zip(before.leaves(), after.leaves(), strict=True):
        if was is now or not now.outputs or now.__dict__.get(VALIDATED_KEY) is sound:
            continue
        form = "" if _by_rule(now) else _signature(was)
        if form and form not in sound:
            wrong = (
                ""
                if _is_plain_pointwise(was) and _is_plain_pointwise(now)
                else _mismatch(now, after)
            )
            if wrong and not _mismatch(was, before):
                raise RefusedError(f"{now.name} does not take this size: {wrong}", [(was, "")])
            if wrong:
                continue
            sound.add(form)
        now.__dict__[VALIDATED_KEY] = sound


VALIDATED_KEY = "irgraph.verbs.torch_check.sound"
"""Where an op keeps in which graphs torch takes it: those that share the forms known there."""

MAX_DIM_SETS = 64
_VALIDATED: OrderedDict[object, set[object]] = OrderedDict()
"""By sizes of dimensions: the forms of calls that torch takes there."""


def _validated_signatures(graph: Graph) -> set[object]:
    """Return the forms of calls that torch is known to take in graphs of these dimensions."""
    key = (tuple(graph.dims.items()), graph.schemas, graph.device)
    found = _VALIDATED.setdefault(key, set())
    if len(_VALIDATED) > MAX_DIM_SETS:
        _VALIDATED.pop(next(iter(_VALIDATED)), None)
    return found


SIGNATURE_KEY = "irgraph.verbs.torch_check"
"""Where an op keeps its form."""


def _signature(op: Op) -> str:
    """Return a key shared by all ops that differ only in names and places.

    Sizes that follow from dimensions stand in it as expressions with their values.
    """
    return memoize(op, SIGNATURE_KEY, _compute_signature)


def _compute_signature(op: Op) -> str:
    values = (*op.operands, *op.attributes.items(), *op.results)
    places: dict[str, int] = {}
    buffers = [places.setdefault(t.buffer, len(places)) for t in (*op.inputs, *op.outputs)]
    written = [tensor.name in op.written for tensor in op.inputs]
    said = [_spelling(value) for value in values]
    return sys.intern(f"{op.name} {said} {buffers} {written}")


def _spelling(value: Value) -> object:
    """Return a value as ``_form`` shows it: a size that is an expression as that."""
    if isinstance(value, Tensor):
        return (value.dtype, value.shape, value.strides, value.offset, value.device)
    return [_spelling(item) for item in value] if isinstance(value, tuple) else value


def _by_rule(op: Op) -> bool:
    """Return whether a rule knows that torch gives an op's results the sizes that they have."""
    return shapes_by_rule(op) == [tensor.shape for tensor in op.outputs] and not _out_of_bounds(op)


def _out_of_bounds(op: Op) -> str:
    """Return which result would reach beyond the operand that it is a view of, if any."""
    for result in op.outputs:
        ends = [t.extent[1] for t in op.inputs if t.buffer == result.buffer]
        if ends and result.extent[1] > max(ends):
            return f"%{result.name} would reach beyond what it is a view of"
    return ""


def _is_plain_pointwise(op: Op) -> bool:
    """Return whether the IR itself knows that torch takes an op: it goes element by element."""
    shape = op.results[0].shape if isinstance(op.results[0], Tensor) else None
    buffers = {tensor.buffer for tensor in op.inputs}
    return (
        is_pointwise(op.name)
        and shape is not None
        and not op.written
        and not any(tensor.buffer in buffers for tensor in op.outputs)
        and all(broadcast([t.shape for t in op.inputs]) == r.shape for r in op.outputs)
    )


MAX_VALID_CALLS = 4096
_VALID_CALLS: dict[tuple[object, ...], None] = {}
"""Calls that torch takes, by all that this follows from: the ops of a step are of few kinds."""


def _mismatch(op: Op, graph: Graph) -> str:
    """Return what ``_asked`` says; of calls that torch takes this is remembered."""
    places: dict[str, int] = {}
    buffers = tuple(places.setdefault(t.buffer, len(places)) for t in (*op.inputs, *op.outputs))
    written = tuple(t.name in op.written for t in op.inputs)
    key = (type_signature(op), buffers, written, graph.schemas, graph.device)
    if key in _VALID_CALLS:
        return ""
    found = _torch_mismatch(op, graph)
    if not found:
        if len(_VALID_CALLS) >= MAX_VALID_CALLS:
            _VALID_CALLS.clear()
        _VALID_CALLS[key] = None
    return found


def _torch_mismatch(op: Op, graph: Graph) -> str:
    """Return why torch does not give an op's results the sizes that they have, if so."""
    try:
        found = _shapes(plain_sizes(op, graph.schemas, graph.dims, graph.device))
    except ImportError:
        return ""
    except ShapeError as error:
        return str(error)
    if beyond := _out_of_bounds(op):
        return beyond
    said = _shapes(op.results)
    return "" if found == said else f"it would give {_shapes_text(found)}, not {_shapes_text(said)}"


def _shapes_text(shapes: Shapes) -> str:
    return ", ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes) or "nothing"


def _shapes(results: tuple[Result, ...]) -> Shapes:
    return [tuple(map(int, tensor.shape)) for tensor in tensors_in(results)]


def type_signature(op: Op) -> str:
    """Return a key shared by all ops that differ only in names and places."""
    values = (*op.operands, *op.attributes.items(), *op.results)
    return f"{op.name} {[_type(value) for value in values]}"


def _type(value: Value) -> object:
    if isinstance(value, Tensor):
        return (value.dtype, [*map(int, value.shape)], value.strides, value.offset, value.device)
    return [_type(item) for item in value] if isinstance(value, tuple) else value
