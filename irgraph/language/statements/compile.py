"""``compile`` lets regions run as what ``torch.compile`` makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from irgraph.ir.op import Op
from irgraph.language.checking.checker import Checker
from irgraph.language.clauses import words
from irgraph.language.expressions.values import counted
from irgraph.language.patterns.nodes import Selection
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals
from irgraph.language.statement import Statement

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
        refusals = Refusals(frame, self.place, True)
        refusals.add_each(done.left, "is not compiled")
        if not done.calls:
            said = "nothing changed: fewer than two ops in a row can be compiled"
            return replace(entry, done=said, refused=tuple(refusals.found))
        inside = sum(1 for call in done.calls for _ in call.leaves())
        shared, kernels = done.fused
        fused = f"{shared} of them in {counted(kernels, 'generated kernel')}"
        return replace(
            entry,
            made=len(done.calls),
            moved=inside,
            done=f"{counted(inside, 'op')} in {counted(len(done.calls), 'call')}, {fused}",
            legal=(LEGAL,),
            refused=tuple(refusals.found),
        )
