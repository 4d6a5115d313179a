"""``compile`` lets regions run as what ``torch.compile`` makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from irgraph.diagnostics import Diagnostic
from irgraph.ir.op import Op
from irgraph.language.checking.checker import Checker
from irgraph.language.clauses import words
from irgraph.language.expressions.values import counted
from irgraph.language.patterns.nodes import Selection
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals, call_of
from irgraph.language.statement import Statement
from irgraph.verbs.refusal import RefusedError

LEGAL = "the ops stay as they are, in an order that keeps every dependence"


@dataclass(frozen=True)
class Compile(Statement):
    """``compile selection``, or ``compile`` for all but the optimizer's ops."""

    selection: Selection | None = None

    def __str__(self) -> str:
        """Return the statement's text."""
        return words("compile", self.selection or "")

    def check(self, check: Checker) -> None:
        """Check the selection."""
        if self.selection is not None:
            check.selection(self.selection)

    def run(self, frame: Frame) -> Entry:
        """Make calls of compiled code of what matches."""
        from irgraph.verbs.compiled import compiled  # imports torch

        chosen: list[Op] | None = None
        entry = frame.entry(self)
        if self.selection is not None:
            selected = frame.select_whole(self.selection)
            entry = frame.entry_of(self, selected, self.selection)
            chosen = [op for match in selected.matches for op in selected.members(match)]
        done = compiled(frame.state.graph, chosen)
        frame.state.graph = done.graph
        found = _found(Refusals(frame, self.place, True), done.left)
        if not done.calls:
            said = "nothing changed: fewer than two ops in a row can be compiled"
            return replace(entry, done=said, refused=found)
        inside = sum(1 for call in done.calls for _ in call.leaves())
        shared, kernels = done.fused
        fused = f"{shared} of them in {counted(kernels, 'generated kernel')}"
        return replace(
            entry,
            made=len(done.calls),
            moved=inside,
            done=f"{counted(inside, 'op')} in {counted(len(done.calls), 'call')}, {fused}",
            legal=(LEGAL,),
            refused=found,
        )


def _found(refusals: Refusals, left: tuple[tuple[Op, RefusedError], ...]) -> tuple[Diagnostic, ...]:
    """Return the first refusal of each reason, with how many more there are."""
    told: dict[str, int] = {}
    for op, why in left:
        told[why.reason] = told.get(why.reason, 0) + 1
        if told[why.reason] == 1:
            refusals.add(why, f"{call_of(op)} is not compiled")
    return tuple(
        replace(one, message=one.message + (f" (and {count - 1} more)" if count > 1 else ""))
        for one, count in zip(refusals.found, told.values(), strict=False)
    )
