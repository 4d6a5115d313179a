"""Whether a new op reads and writes all that the ops which it replaces read and wrote."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
    for member in members:
        effect = effects(member, declared)
        for tensor in effect.writes:
            if tensor.buffer not in inside and not _touches(tensor, written):
                raise RefusedError(
                    f"the new op would not write %{tensor.name}, as {member.name} does",
                    [(member, f"{member.name} writes %{tensor.name}")],
                )
        for tensor in effect.reads:
            if tensor.buffer not in inside and not _touches(tensor, read):
                raise RefusedError(
                    f"the new op would not take %{tensor.name}, which {member.name} reads",
                    [(member, f"{member.name} reads %{tensor.name}")],
                )


def _own_buffers(members: Sequence[Op]) -> set[str]:
    """Return the buffers that only the members' own results lie in."""
    made: set[str] = set()
    names: set[str] = set()
    taken: set[str] = set()
    for member in members:
        for op in member.walk():
            taken.update(t.buffer for t in op.inputs if t.name not in names)
            names.update(t.name for t in op.outputs)
            made.update(t.buffer for t in op.outputs)
    return made - taken


def _touches(tensor: Tensor, others: Collection[Tensor]) -> bool:
    return any(tensor.name == other.name or overlap(tensor, other) for other in others)
