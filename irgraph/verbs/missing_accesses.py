"""Accesses of replaced ops that a new op lacks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from irgraph.ir.effects import effects
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor, overlap
from irgraph.verbs.refusal import RefusedError


def check_cover(
    members: Sequence[Op],
    reads: Collection[Tensor],
    writes: Collection[Tensor],
    declared: frozenset[str] = frozenset(),
) -> None:
    """Refuse a new op without access to bytes from outside that members access.

    ``reads`` are the operands of the new op and all tensors that may be omitted; ``writes`` are the
    operands that it writes in place.
    """
    own_buffers = _own_buffers(members)
    readable, writable = _ByBuffer(reads), _ByBuffer(writes)
    for member in members:
        effect = effects(member, declared)
        for tensor in effect.writes:
            if tensor.buffer not in own_buffers and not writable.overlaps(tensor):
                raise RefusedError(
                    f"the new op would not write %{tensor.name}, as {member.name} does",
                    [(member, f"{member.name} writes %{tensor.name}")],
                )
        for tensor in effect.reads:
            if tensor.buffer not in own_buffers and not readable.overlaps(tensor):
                raise RefusedError(
                    f"the new op would not take %{tensor.name}, which {member.name} reads",
                    [(member, f"{member.name} reads %{tensor.name}")],
                )


def _own_buffers(members: Sequence[Op]) -> set[str]:
    """Return the buffers that contain only the members' own results."""
    result_buffers: set[str] = set()
    names: set[str] = set()
    input_buffers: set[str] = set()
    for member in members:
        for op in member.walk():
            input_buffers.update(t.buffer for t in op.inputs if t.name not in names)
            names.update(t.name for t in op.outputs)
            result_buffers.update(t.buffer for t in op.outputs)
    return result_buffers - input_buffers


@dataclass
class _ByBuffer:
    """Tensors by their buffers."""

    tensors: Collection[Tensor]

    def __post_init__(self) -> None:
        self.names = {tensor.name for tensor in self.tensors}
        self.buffers: dict[str, list[Tensor]] = {}
        for tensor in self.tensors:
            self.buffers.setdefault(tensor.buffer, []).append(tensor)

    def overlaps(self, tensor: Tensor) -> bool:
        """Return whether a tensor is one of these, or overlaps one."""
        if tensor.name in self.names:
            return True
        return any(overlap(tensor, other) for other in self.buffers.get(tensor.buffer, ()))
