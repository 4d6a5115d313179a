"""Properties of tensors and ops available in expressions."""

from __future__ import annotations

from collections.abc import Callable

from irgraph.ir.effects import effects, written_by
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import DeviceRef, DType, Tensor


def shape_text(tensor: Tensor) -> str:
    """Return a tensor's type as ``model.ir`` writes it, without its buffer: ``f32[2048, 64]``."""
    shape = ", ".join(str(int(size)) for size in tensor.shape)
    steps = "" if tensor.contiguous else "; " + ", ".join(map(str, tensor.strides or ()))
    return f"{tensor.dtype}[{shape}{steps}] @{tensor.device}"


TENSOR_ATTRIBUTES: dict[str, tuple[str, Callable[[Tensor], Value]]] = {
    "shape": ("list", lambda t: tuple(t.shape)),
    "dtype": ("dtype", lambda t: DType(t.dtype)),
    "nbytes": ("bytes", lambda t: t.nbytes),
    "numel": ("number", lambda t: t.numel),
    "rank": ("number", lambda t: t.rank),
    "device": ("device", lambda t: DeviceRef(t.device)),
    "type": ("text", shape_text),
    "buffer": ("text", lambda t: t.buffer),
    "name": ("text", lambda t: t.name),
}
"""Properties of tensors: their kinds, and the functions that return them."""


def _accessed_bytes(op: Op) -> int:
    effect = effects(op)
    return sum(t.nbytes for t in (*effect.reads, *effect.writes))


def _first_result(op: Op) -> str:
    return next((t.name for t in (*op.outputs, *written_by(op))), "")


OP_ATTRIBUTES: dict[str, tuple[str, Callable[[Op], Value]]] = {
    "name": ("text", lambda op: op.name),
    "phase": ("text", lambda op: op.phase),
    "stream": ("text", lambda op: op.stream),
    "thread": ("text", lambda op: op.thread),
    "module": ("text", lambda op: op.module),
    "bytes": ("bytes", _accessed_bytes),
    "result": ("text", _first_result),
}
"""Properties of ops, except those that depend on the graph or a device, such as ``time``."""
