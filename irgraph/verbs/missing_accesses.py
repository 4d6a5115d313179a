"""Whether a new op reads and writes everything that the ops it replaces did."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from irgraph.ir.effects import effects
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor, overlap
from irgraph.verbs.refusal import RefusedError


def check_cover(
    members: Sequence[Op],
    read: Collection[Tensor],
    written: Collection[Tensor],
    declared: frozenset[str] = frozenset(),
) -> None:
    """Refuse where members touch bytes from outside that the new op is not given.

    ``read`` are the operands of the new op and whatever may be left out; ``written`` those that it
    writes in place.
    """
    inside = _own_buffers(members)
    readable, writable = _ByBuffer(read), _ByBuffer(written)
    for member in members:
        effect = effects(member, declared)
        for tensor in effect.writes:
            if tensor.buffer not in inside and not writable.overlaps(tensor):
                raise RefusedError(
                    f"the new op would not write %{tensor.name}, as {member.name} does",
                    [(member, f"{member.name} writes %{tensor.name}")],
                )
        for tensor in effect.reads:
            if tensor.buffer not in inside and not readable.overlaps(tensor):
                raise RefusedError(
                    f"the new op would not take %{tensor.name}, which {member.name} reads",
                    [(member, f"{member.name} reads %{tensor.name}")],
                )


def _own_buffers(members: Sequence[Op]) -> set[str]:
    """Return the buffers that only the members' own results lie in."""
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
    """Tensors by the buffers that they lie in."""

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
