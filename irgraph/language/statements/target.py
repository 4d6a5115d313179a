"""``target`` names the device that costs are for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from irgraph.diagnostics import IrgraphError, fail
from irgraph.language.checking.checker import Checker
from irgraph.language.expressions.nodes import Expression
from irgraph.language.expressions.values import spell
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame
from irgraph.language.statement import Statement


@dataclass(frozen=True)
class Target(Statement):
    """``target device``."""

    device: Expression

    def __str__(self) -> str:
        return f"target {self.device}"

    def check(self, check: Checker) -> None:
        """Check that the device is a text."""
        hint = 'write one as in "v100"'
        check.kinds.require("text", self.device, "the name of a device", hint)

    def run(self, frame: Frame) -> Entry:
        """Choose the device."""
        name, state = frame.value(self.device), frame.state
        if state.targets is None:
            hint = "give run its targets: irgraph.manage.run.find_target"
            raise fail("no devices are available here", self.place, hint=hint)
        if not isinstance(name, str):
            raise fail(f"expected the name of a device, not {spell(name)}", self.place)
        try:
            state.pricer = state.targets(name)
        except IrgraphError as error:
            first = error.diagnostics[0]
            raise fail(first.message, self.device.place, hint=first.hint) from None
        return replace(frame.entry(self), done=name)
