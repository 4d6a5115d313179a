"""Validation of the sizes of a resized graph by declarations, or else by torch."""

from __future__ import annotations

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Shape
from irgraph.ops.inference import ShapeError, shapes_of
from irgraph.ops.resized import confirms_resize, has_valid_sizes, mark_valid_sizes
from irgraph.verbs.refusal import RefusedError


def check_sizes(before: Graph, after: Graph) -> None:
    """Raise ``RefusedError`` if torch rejects an op of a resized graph or computes other sizes.

    Only ops whose original sizes torch reproduces are validated.
    """
    for original, resized in zip(before.leaves(), after.leaves(), strict=True):
        if original is resized or not resized.outputs or has_valid_sizes(resized):
            continue
        if not confirms_resize(original, resized) or _bounds_error(resized):
            mismatch = _mismatch(resized, after)
            if mismatch and not _mismatch(original, before):
                message = f"{resized.name} does not take this size: {mismatch}"
                raise RefusedError(message, [(original, "")])
            if mismatch:
                continue
        mark_valid_sizes(resized)


def _bounds_error(op: Op) -> str:
    """Return an error for a view that would exceed its base, ``""`` if there is none."""
    for result in op.outputs:
        ends = [t.extent[1] for t in op.inputs if t.buffer == result.buffer]
        if ends and result.extent[1] > max(ends):
            return f"%{result.name} would reach beyond what it is a view of"
    return ""


def _mismatch(op: Op, graph: Graph) -> str:
    """Return why the sizes of an op's results are invalid, ``""`` if they are valid or unknown."""
    try:
        shapes = shapes_of(op, graph.schemas, graph.dims, graph.device)
    except ImportError:
        return ""
    except ShapeError as error:
        return str(error)
    expected = [tensor.shape for tensor in op.outputs]
    bounds_error = _bounds_error(op)
    if bounds_error or shapes == expected:
        return bounds_error
    return f"it would give {_text(shapes)}, not {_text(expected)}"


def _text(shapes: list[Shape]) -> str:
    return ", ".join(f"[{', '.join(str(int(n)) for n in shape)}]" for shape in shapes) or "nothing"
