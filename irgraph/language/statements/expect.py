"""``expect`` fails a script if another number of ops match."""

from __future__ import annotations

from dataclasses import dataclass, replace

from irgraph.diagnostics import Diagnostic, IrgraphError
from irgraph.language.checking.checker import Checker
from irgraph.language.patterns.nodes import Selection
from irgraph.language.running.report import Entry, op_place
from irgraph.language.running.state import ILLEGAL, Frame, call_of, nothing_matched
from irgraph.language.statement import Statement

MAX_SHOWN_OPS = 3
"""Maximum number of ops that an error shows."""


@dataclass(frozen=True)
class Expect(Statement):
    """``expect 1 selection``, or ``expect no selection``."""

    count: int
    selection: Selection

    def __str__(self) -> str:
        return f"expect {self.count or 'no'} {self.selection}"

    def check(self, check: Checker) -> None:
        """Check the selection."""
        check.selection(self.selection)

    def run(self, frame: Frame) -> Entry:
        """Count the ops that match."""
        selected = frame.select(self.selection, all_=True)
        if selected.total == self.count:
            return replace(frame.entry(self), matched=selected.total)
        expected = self.count or "no"
        message = f"expected {expected} {self.selection.pattern}, found {selected.total}"
        ops = [selected.op(match.root) for match in selected.matches[:MAX_SHOWN_OPS]]
        places = [(call_of(op), op_place(op, frame.state.graph)) for op in ops]
        notes = [Diagnostic(text, place, severity="note") for text, place in places]
        if not selected.total:
            notes = [replace(nothing_matched(selected, self.selection), severity="note")]
        raise IrgraphError((Diagnostic(message, self.place, tuple(notes)),), ILLEGAL)
