"""``let`` names a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from irgraph.language.checking.checker import Checker
from irgraph.language.expressions.nodes import Expression
from irgraph.language.running.state import Frame
from irgraph.language.statement import Statement


@dataclass(frozen=True)
class Let(Statement):
    """``let name = value``."""

    name: str
    value: Expression

    def __str__(self) -> str:
        return f"let {self.name} = {self.value}"

    def names(self) -> Sequence[str]:
        """Return the name."""
        return (self.name,)

    def check(self, check: Checker) -> None:
        """Check the value, and that the name is free."""
        check.define(self.name, check.kinds.infer(self.value), self.place)

    def run(self, frame: Frame) -> None:
        """Store the value under the name."""
        frame.names[self.name] = frame.value(self.value)
