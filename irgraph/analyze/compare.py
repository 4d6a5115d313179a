"""Two analyses side by side: what takes longer, what is new, what is gone; totals add up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec import Struct

from irgraph.analyze.analysis import PARTS, Analysis
from irgraph.analyze.figures import StepFigures
from irgraph.diagnostics import fail, suggestion

BY = (*PARTS, "host")
"""What device work, or the host's time, can be parted by."""

_FIGURES = {
    "step": "time",
    "GPU active": "active",
    "GPU idle": "idle",
    "compute": "compute",
    "copies": "copies",
    "exposed communication": "exposed",
}


class Change(Struct, frozen=True):
    """One row: microseconds and calls a step, before and after.

    Attributes:
        name: of the operator, kernel, family, module or phase; or of a figure of the step.
        before, after: microseconds a step; 0 where it is not there.
        calls_before, calls_after: a step; 0 for figures of the step.
    """

    name: str
    before: float
    after: float
    calls_before: float = 0.0
    calls_after: float = 0.0

    @property
    def delta(self) -> float:
        """Microseconds a step that it takes longer."""
        return self.after - self.before

    @property
    def what(self) -> str:
        """``new``, ``gone``, or what became of it."""
        if not self.calls_before or not self.calls_after:
            return "gone" if self.calls_before else "new" if self.calls_after else ""
        return "" if self.calls_before == self.calls_after else "called at another rate"

    def row(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "name": self.name,
            "before_us": round(self.before, 3),
            "after_us": round(self.after, 3),
            "delta_us": round(self.delta, 3),
            "calls_before": round(self.calls_before, 2),
            "calls_after": round(self.calls_after, 2),
            "what": self.what,
        }


def compare(before: Analysis, after: Analysis, by: str = "op") -> tuple[list[Change], list[Change]]:
    """Return what changed of the mean usual step, and of its parts, the largest change first.

    Parts are matched by name. The deltas of the parts add up to that of their sum: all device
    work (of streams that run at once the sum is more than the time that they are active), or with
    ``host`` all time in operators.

    Args:
        before: the analysis of some traces.
        after: that of others, of the same program.
        by: one of ``BY``.

    Raises:
        IrgraphError: ``by`` is unknown, or parts device work where a trace has none (exit code 2).
    """
    if by not in BY:
        hint = f"known: {', '.join(BY)}"
        raise fail(f"no breakdown by {by!r}{suggestion(by, BY)}", hint=hint, exit_code=2)
    if by != "host" and None in (before.covered, after.covered):
        hint = "--by host parts the time of the host"
        raise fail(f"a trace has no device work to part by {by}", hint=hint, exit_code=2)
    old, new = _parts(before, by), _parts(after, by)
    nothing = (0.0, 0.0)
    parts = [Change(name, *_pair(old, new, name, nothing)) for name in {**old, **new}]
    first, second = _whole(before.steps), _whole(after.steps)
    figures = [Change(name, time, second[name]) for name, time in first.items() if name in second]
    return figures, sorted(parts, key=lambda part: -abs(part.delta))


def _pair(
    old: dict[str, tuple[float, float]],
    new: dict[str, tuple[float, float]],
    name: str,
    nothing: tuple[float, float],
) -> tuple[float, float, float, float]:
    (a, calls), (b, later) = old.get(name, nothing), new.get(name, nothing)
    return a, b, calls, later


def _parts(found: Analysis, by: str) -> dict[str, tuple[float, float]]:
    if by == "host":
        return {name: (own, calls) for name, (own, _, calls) in found.host.items()}
    return dict(found.breakdowns[by])


def _whole(steps: Iterable[StepFigures]) -> dict[str, float]:
    """Return the means of the usual steps; of a device only where the trace has one."""
    usual = [step for step in steps if not step.left_out]
    known = _FIGURES if any(step.on_device for step in usual) else {"step": "time"}
    return {
        name: float(np.mean([getattr(step, field) for step in usual]))
        for name, field in known.items()
        if usual
    }
