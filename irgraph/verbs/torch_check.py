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
    validated = _validated_signatures(after)
    for original, resized in zip(before.leaves(), after.leaves(), strict=True):
        if (
            original is resized
            or not resized.outputs
            or resized.__dict__.get(VALIDATED_KEY) is validated
        ):
            continue
        signature = "" if _is_confirmed_by_rule(resized) else _signature(original)
        if signature and signature not in validated:
            mismatch = (
                ""
                if _is_plain_pointwise(original) and _is_plain_pointwise(resized)
                else _mismatch(resized, after)
            )
            if mismatch and not _mismatch(original, before):
                raise RefusedError(
                    f"{resized.name} does not take this size: {mismatch}", [(original, "")]
                )
            if mismatch:
                continue
            validated.add(signature)
        resized.__dict__[VALIDATED_KEY] = validated


VALIDATED_KEY = "irgraph.verbs.torch_check.sound"
"""Where an op keeps in which graphs torch takes it: those that share the forms known there."""

MAX_DIM_SETS = 64
_VALIDATED: OrderedDict[object, set[object]] = OrderedDict()
"""By sizes of dimensions: the forms of calls that torch takes there."""


def _validated_signatures(graph: Graph) -> set[object]:
    """Return the forms of calls that torch is known to take in graphs of these dimensions."""
    key = (tuple(graph.dims.items()), graph.schemas, graph.device)
    signatures = _VALIDATED.setdefault(key, set())
    if len(_VALIDATED) > MAX_DIM_SETS:
        _VALIDATED.pop(next(iter(_VALIDATED)), None)
    return signatures


SIGNATURE_KEY = "irgraph.verbs.torch_check"
"""Where an op keeps its form."""


def _signature(op: Op) -> str:
    """Return a key shared by all ops that differ only in names and places.

    Sizes that follow from dimensions stand in it as expressions with their values.
    """
    return memoize(op, SIGNATURE_KEY, _compute_signature)


def _compute_signature(op: Op) -> str:
    values = (*op.operands, *op.attributes.items(), *op.results)
    index_by_buffer: dict[str, int] = {}
    buffers = [
        index_by_buffer.setdefault(t.buffer, len(index_by_buffer))
        for t in (*op.inputs, *op.outputs)
    ]
    written = [tensor.name in op.written for tensor in op.inputs]
    spellings = [_spelling(value) for value in values]
    return sys.intern(f"{op.name} {spellings} {buffers} {written}")


def _spelling(value: Value) -> object:
    """Return a value as ``_form`` shows it: a size that is an expression as that."""
    if isinstance(value, Tensor):
        return (value.dtype, value.shape, value.strides, value.offset, value.device)
    return [_spelling(item) for item in value] if isinstance(value, tuple) else value


def _is_confirmed_by_rule(op: Op) -> bool:
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
    index_by_buffer: dict[str, int] = {}
    buffers = tuple(
        index_by_buffer.setdefault(t.buffer, len(index_by_buffer))
        for t in (*op.inputs, *op.outputs)
    )
    written = tuple(t.name in op.written for t in op.inputs)
    key = (type_signature(op), buffers, written, graph.schemas, graph.device)
    if key in _VALID_CALLS:
        return ""
    mismatch = _torch_mismatch(op, graph)
    if not mismatch:
        if len(_VALID_CALLS) >= MAX_VALID_CALLS:
            _VALID_CALLS.clear()
        _VALID_CALLS[key] = None
    return mismatch


def _torch_mismatch(op: Op, graph: Graph) -> str:
    """Return why torch does not give an op's results the sizes that they have, if so."""
    try:
        shapes = _shapes(plain_sizes(op, graph.schemas, graph.dims, graph.device))
    except ImportError:
        return ""
    except ShapeError as error:
        return str(error)
    if bounds_error := _out_of_bounds(op):
        return bounds_error
    expected = _shapes(op.results)
    return (
        ""
        if shapes == expected
        else f"it would give {_shapes_text(shapes)}, not {_shapes_text(expected)}"
    )


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
