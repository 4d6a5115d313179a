"""Checks views: they share their operand's buffer, at the strides and the place that torch gives.

The bytes of ``as_strided`` must be within the bytes of other tensors of its buffer: torch's meta
device does not have the size of a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator

from irgraph.ir.effects import always_alias
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor, row_major
from irgraph.ops.rules.finding import Finding


def _has_free_start(op: Op) -> bool:
    """Return whether a view may begin anywhere in the buffer of its operand."""
    return op.name.removesuffix("_") == "aten.as_strided"


def view_form(op: Op) -> tuple[object, ...]:
    """Return the buffers and offsets of a view's results relative to its operands, as a key."""
    if not always_alias(op.name):
        return ()
    bases = [(tensor.buffer, tensor.offset) for tensor in op.inputs]
    buffers = [buffer for buffer, _ in bases]
    return tuple(
        (buffers.index(t.buffer), t.offset - bases[buffers.index(t.buffer)][1])
        if t.buffer in buffers
        else -1
        for t in op.outputs
    )


def view_difference(op: Op, expected: Tensor, actual: Tensor) -> str:
    """Return the difference of a view from torch's, ``""`` if there is none or it is no view."""
    if not always_alias(op.name) or not expected.buffer or not expected.numel:
        return ""
    if actual.buffer != expected.buffer:
        return f"makes a view in ${expected.buffer}, not %{actual.name} in ${actual.buffer}"
    offset = _absolute_offset(op, expected)
    if int(actual.offset) != offset:
        offsets = f"at byte {offset}, not at {int(actual.offset)}"
        return f"makes a view of ${expected.buffer} {offsets}, as %{actual.name} has it"
    if _steps(expected) != _steps(actual):
        return f"makes strides {_text(expected)}, not %{actual.name}, {_text(actual)}"
    return ""


def _absolute_offset(op: Op, expected: Tensor) -> int:
    """Return the first byte of a view in its buffer; ``as_strided`` may give it in elements."""
    elements = op.attributes.get("storage_offset", op.operands[3] if len(op.operands) > 3 else None)
    if _has_free_start(op) and isinstance(elements, int):
        return elements * expected.itemsize
    return int(expected.offset)


def _steps(tensor: Tensor) -> list[int]:
    """Return the strides of axes with several elements: the others are arbitrary."""
    pairs = zip(tensor.shape, _strides(tensor), strict=True)
    return [step for size, step in pairs if size != 1]


def _strides(tensor: Tensor) -> tuple[int, ...]:
    sizes = row_major(tensor.shape) if tensor.strides is None else tensor.strides
    return tuple(map(int, sizes))


def _text(tensor: Tensor) -> str:
    return f"({', '.join(map(str, _strides(tensor)))})"


def bound_findings(graph: Graph) -> Iterator[Finding]:
    """Yield the views that contain bytes beyond their buffer, as other tensors show its extent."""
    ops = [op for op in graph.leaves() if _has_free_start(op)]
    if not ops:
        return
    buffers = {t.buffer for op in ops for t in op.inputs[:1]}
    extents = _extents(graph, buffers)
    for op in ops:
        for tensor in op.outputs if op.outputs else op.inputs[:1]:
            low, high = extents.get(tensor.buffer, (0, 0))
            begin, end = tensor.extent
            if tensor.buffer in buffers and tensor.numel and not low <= begin <= end <= high:
                bytes_text = f"bytes {int(begin)} to {int(end)} of ${tensor.buffer}"
                message = f"makes %{tensor.name}, {bytes_text}, which has bytes {low} to {high}"
                yield Finding("types", message, op)


def _extents(graph: Graph, buffers: set[str]) -> dict[str, tuple[int, int]]:
    """Return the first and last byte of each buffer by the tensors that are no such view."""
    extents: dict[str, tuple[int, int]] = {}
    tensors = [declared.tensor for declared in graph.tensors]
    tensors += [t for op in graph.leaves() if not _has_free_start(op) for t in op.outputs]
    for tensor in tensors:
        if tensor.buffer in buffers:
            begin, end = map(int, tensor.extent)
            low, high = extents.get(tensor.buffer, (begin, end))
            extents[tensor.buffer] = (min(low, begin), max(high, end))
    return extents
