"""Statements about the ops that match a selection, or about the whole step."""

from __future__ import annotations

from dataclasses import dataclass

from irgraph.ir.op import Op
from irgraph.language.checking.checker import Checker
from irgraph.language.clauses import join_words
from irgraph.language.patterns.nodes import Selection
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame
from irgraph.language.statement import Statement


@dataclass(frozen=True)
class OptionalSelection(Statement):
    """``capture selection``, or ``capture`` alone."""

    selection: Selection | None = None

    def __str__(self) -> str:
        """Return the statement's text."""
        return join_words(type(self).__name__.lower(), self.selection or "")

    def check(self, check: Checker) -> None:
        """Check the selection."""
        if self.selection is not None:
            check.selection(self.selection)

    def select_ops(self, frame: Frame) -> tuple[Entry, list[Op] | None]:
        """Return an entry, and the selected ops; ``None`` if the statement is about the step."""
        if self.selection is None:
            return frame.entry(self), None
        selected = frame.select_whole(self.selection)
        return frame.entry_of(self, selected, self.selection), selected.ops
