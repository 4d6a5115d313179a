"""Validates the sizes of a resized graph with torch's meta device."""

from __future__ import annotations

import sys

from irgraph.facts import FactTable, fact, facts_of
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Result, Value, tensors_in
from irgraph.ir.tensor import Tensor
from irgraph.ops.resized import confirms_resize
from irgraph.shapes import ShapeError, plain_sizes
from irgraph.verbs.refusal import RefusedError

Shapes = list[tuple[int, ...]]


def check_sizes(before: Graph, after: Graph) -> None:
    """Raise ``RefusedError`` if torch rejects an op of a resized graph or computes other sizes.

    Only ops whose original sizes torch reproduces are validated.
    """
    validated = _validated_signatures(after)
    for original, resized in zip(before.leaves(), after.leaves(), strict=True):
        if (
            original is resized
            or not resized.outputs
            or facts_of(resized).get(VALIDATED_KEY) is validated
        ):
            continue
        is_confirmed = confirms_resize(original, resized) and not _out_of_bounds(resized)
        signature = "" if is_confirmed else _signature(original)
        if signature and signature not in validated:
            mismatch = _mismatch(resized, after)
            if mismatch and not _mismatch(original, before):
                raise RefusedError(
                    f"{resized.name} does not take this size: {mismatch}", [(original, "")]
                )
            if mismatch:
                continue
            validated.add(signature)
        facts_of(resized)[VALIDATED_KEY] = validated


VALIDATED_KEY = "irgraph.verbs.torch_check.sound"
"""Attribute of an op: the set of signatures among which it was validated."""

MAX_DIM_SETS = 64
_VALIDATED = FactTable[object, set[object]](MAX_DIM_SETS)
"""Signatures that torch accepts, by dimension sizes."""


def _validated_signatures(graph: Graph) -> set[object]:
    """Return the validated signatures for a graph's dimension sizes."""
    key = (tuple(graph.dims.items()), graph.schemas, graph.device)
    signatures = _VALIDATED.get(key)
    if signatures is None:
        signatures = _VALIDATED[key] = set()
    return signatures


SIGNATURE_KEY = "irgraph.verbs.torch_check"
"""Attribute that caches an op's signature."""


def _signature(op: Op) -> str:
    """Return an op's signature: a key that ignores names and positions.

    Sizes that depend on dimensions appear as expressions, with their values.
    """
    return fact(op, SIGNATURE_KEY, _compute_signature)


def _compute_signature(op: Op) -> str:
    values = (*op.operands, *op.attributes.items(), *op.results)
    index_by_buffer: dict[str, int] = {}
    buffers = [
        index_by_buffer.setdefault(t.buffer, len(index_by_buffer))
        for t in (*op.inputs, *op.outputs)
    ]
    is_written = [tensor.name in op.written for tensor in op.inputs]
    spellings = [_spelling(value) for value in values]
    return sys.intern(f"{op.name} {spellings} {buffers} {is_written}")


def _spelling(value: Value) -> object:
    """Return a value as it appears in a signature, symbolic sizes unevaluated."""
    if isinstance(value, Tensor):
        return (value.dtype, value.shape, value.strides, value.offset, value.device)
    return [_spelling(item) for item in value] if isinstance(value, tuple) else value


def _out_of_bounds(op: Op) -> str:
    """Return an error for a view that would exceed its base, ``""`` if there is none."""
    for result in op.outputs:
        ends = [t.extent[1] for t in op.inputs if t.buffer == result.buffer]
        if ends and result.extent[1] > max(ends):
            return f"%{result.name} would reach beyond what it is a view of"
    return ""


MAX_VALID_CALLS = 4096
_VALID_CALLS = FactTable[tuple[object, ...], None](MAX_VALID_CALLS)
"""Calls that torch accepted, by everything that the answer depends on."""


def _mismatch(op: Op, graph: Graph) -> str:
    """Return the mismatch that ``_torch_mismatch`` reports; calls that torch accepts are cached."""
    index_by_buffer: dict[str, int] = {}
    buffers = tuple(
        index_by_buffer.setdefault(t.buffer, len(index_by_buffer))
        for t in (*op.inputs, *op.outputs)
    )
    is_written = tuple(t.name in op.written for t in op.inputs)
    key = (type_signature(op), buffers, is_written, graph.schemas, graph.device)
    if key in _VALID_CALLS:
        return ""
    mismatch = _torch_mismatch(op, graph)
    if not mismatch:
        _VALID_CALLS[key] = None
    return mismatch


def _torch_mismatch(op: Op, graph: Graph) -> str:
    """Return why torch's result sizes differ from an op's, ``""`` if they agree."""
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
    """Return a key that is equal for all ops that differ only in names and positions."""
    values = (*op.operands, *op.attributes.items(), *op.results)
    return f"{op.name} {[_type(value) for value in values]}"


def _type(value: Value) -> object:
    if isinstance(value, Tensor):
        return (value.dtype, [*map(int, value.shape)], value.strides, value.offset, value.device)
    return [_type(item) for item in value] if isinstance(value, tuple) else value
