"""``capture`` lets ops that follow one another be launched at once, as CUDA graphs."""

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
from irgraph.verbs.capture import LEAST, capture


@dataclass(frozen=True)
class Capture(Statement):
    """``capture selection``, or ``capture`` for all of the step."""

    selection: Selection | None = None

    def __str__(self) -> str:
        """Return the statement's text."""
        return words("capture", self.selection or "")

    def check(self, check: Checker) -> None:
        """Check the selection."""
        if self.selection is not None:
            check.selection(self.selection)

    def run(self, frame: Frame) -> Entry:
        """Make graphs of what matches."""
        chosen: list[Op] | None = None
        entry = frame.entry(self)
        if self.selection is not None:
            selected = frame.select_whole(self.selection)
            entry = frame.entry_of(self, selected, self.selection)
            chosen = [op for match in selected.matches for op in selected.members(match)]
        done = capture(frame.state.graph, chosen)
        frame.state.graph = done.graph
        refusals = Refusals(frame, self.place, True)
        refusals.add_each(done.left, "is in no graph")
        if not done.launches:
            said = f"nothing changed: fewer than {LEAST} ops in a row launch something"
            return replace(entry, done=said, refused=tuple(refusals.found))
        inside = sum(1 for launch in done.launches for _ in launch.leaves())
        copied = f", {done.copied} copied in" if done.copied else ""
        return replace(
            entry,
            made=len(done.launches) + done.copied,
            moved=inside,
            done=f"{counted(inside, 'op')} in {counted(len(done.launches), 'graph')}{copied}",
            legal=("the host takes no part in them, and what they read lies where it lay",),
            refused=tuple(refusals.found),
        )
