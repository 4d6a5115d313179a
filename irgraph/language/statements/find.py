"""``find`` names ops."""

from __future__ import annotations

from dataclasses import dataclass

from irgraph.language.checking.checker import Checker
from irgraph.language.patterns.nodes import Selection
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame
from irgraph.language.statement import Statement


@dataclass(frozen=True)
class Find(Statement):
    """``find name = selection``."""

    name: str
    selection: Selection

    def __str__(self) -> str:
        return f"find {self.name} = {self.selection}"

    def check(self, check: Checker) -> None:
        """Check the selection, and that the name is free."""
        check.selection(self.selection)
        check.name_ops(self.name, self.place)

    def run(self, frame: Frame) -> Entry:
        """Store the ops that match under the name."""
        selected = frame.select(self.selection)
        frame.name_ops(self.name, selected.ops)
        return frame.entry_of(self, selected, self.selection)
