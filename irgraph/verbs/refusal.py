"""Errors that verbs raise if a change would not be legal."""

from __future__ import annotations

from collections.abc import Sequence

from irgraph.ir.dependence import KINDS, Dependence
from irgraph.ir.op import Op


class RefusedError(Exception):
    """A change is not legal.

    Attributes:
        reason: one sentence.
        notes: ops that matter, each with a note about it.
        of_order: whether it depends on dependences, or on the values that were compared, which an
            assumption may pass over.
    """

    def __init__(
        self, reason: str, notes: Sequence[tuple[Op, str]] = (), *, of_order: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.notes = tuple(notes)
        self.of_order = of_order


def op_refusal(op: Op, fault: str) -> RefusedError:
    """Return the refusal of one op: its name, and its fault."""
    return RefusedError(f"{op.name} {fault}", [(op, "")])


class CrossedError(RefusedError):
    """A move would reverse dependences.

    Attributes:
        refusals: every op whose move does so, with its refusal.
    """

    def __init__(self, refusals: Sequence[tuple[Op, RefusedError]]) -> None:
        first = refusals[0][1]
        super().__init__(first.reason, first.notes, of_order=first.of_order)
        self.refusals = tuple(refusals)


def describe(chain: Sequence[Dependence], ops: Sequence[Op]) -> list[tuple[Op, str]]:
    """Return the ops of a chain of dependences, each with its effect on the previous one."""
    notes = []
    for step in chain:
        before, after = ops[step.before], ops[step.after]
        if step.tensor is None:
            relation = "comes after"
        else:
            verb = "reads" if step.kind in ("def", "raw") else "writes"
            relation = f"{verb} %{step.tensor.name} (${step.tensor.buffer}) of"
        notes.append((after, f"{after.name} {relation} {before.name}: {KINDS[step.kind]}"))
    return notes
