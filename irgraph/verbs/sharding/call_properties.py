"""Properties of calls that the rewriting of a step to a rank depends on."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from irgraph.ir.dim import Dim
from irgraph.ir.effects import written_by
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.ops.live_out import is_label, reads_on_host

ORIGIN = "shard"


def in_context(new: Op, op: Op) -> Op:
    """Return a new op with the thread, stream, module and phase of another."""
    return replace(
        new, thread=op.thread, stream=op.stream, module=op.module, phase=op.phase, origin=ORIGIN
    )


def is_inert(op: Op) -> bool:
    """Return whether a leaf reads no elements: a label, or a call without results or writes."""
    has_effect = op.outputs or written_by(op) or reads_on_host(op)
    return is_label(op) or not has_effect


def unread_tensors(graph: Graph) -> frozenset[str]:
    """Return the names of tensors whose memory no op accesses after the op that makes them."""
    return frozenset(
        tensor.name
        for op in graph.leaves()
        for tensor in op.outputs
        if all(
            tensor in leaf.outputs or is_inert(leaf) for _, leaf in graph.touching[tensor.buffer]
        )
    )


def is_written_before_use(graph: Graph, name: str) -> bool:
    """Return whether ops write a computed tensor under other names before one reads it.

    Such a tensor may be a gradient that ranks of another axis of a mesh sum in place.
    """
    is_defined = False
    for _, leaf in graph.touching[graph.by_name[name].buffer]:
        if is_defined and any(tensor.name == name for tensor in leaf.inputs):
            return False
        is_defined = is_defined or any(tensor.name == name for tensor in leaf.outputs)
        buffers = {tensor.buffer for tensor in written_by(leaf)}
        if is_defined and graph.by_name[name].buffer in buffers:
            return True
    return False


def inner_sizes(op: Op, body: Sequence[Op]) -> dict[str, Value]:
    """Return the sizes in a call's arguments, with the new values from its inner call."""
    sizes = {}
    for old, new in zip(op.body, body, strict=True):
        new_by_old = {str(value): new.attributes[name] for name, value in old.attributes.items()}
        sizes.update(
            {n: new_by_old[str(v)] for n, v in op.attributes.items() if str(v) in new_by_old}
        )
    return {name: value for name, value in sizes.items() if isinstance(value, tuple)}


ZEROS = ("zero", "zeros", "zeros_like", "new_zeros")
FILLS = ("fill", "full", "full_like", "new_full")


def is_zeroing(op: Op) -> bool:
    """Return whether all elements of an op's results and writes are zero."""
    base = op.base.rstrip("_").removeprefix("_foreach_")
    if base in ZEROS:
        return True
    numbers = [value for value in (*op.operands, *op.attributes.values()) if is_number(value)]
    return base in FILLS and numbers == [0]


def is_number(value: Value) -> bool:
    """Return whether an argument is a plain number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def equal_numbers(numbers: Op, op: Op, small: Op) -> bool:
    """Return whether a call's numbers for a rank are those with the rank's dimensions."""
    if numbers is op and small is op:
        return True
    return _numbers(numbers) == _numbers(small)


def _numbers(op: Op) -> list[object]:
    values = (*op.operands, *op.attributes.values())
    return [_number(value) for value in values]


def _number(value: Value) -> object:
    if isinstance(value, Tensor):
        return None
    if isinstance(value, tuple):
        return tuple(map(_number, value))
    return str(value) if isinstance(value, Dim) else value
