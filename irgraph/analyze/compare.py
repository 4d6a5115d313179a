"""Comparison of two analyses: slower, new and removed parts; the differences add up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec import Struct

from irgraph.analyze.analysis import GROUPINGS, Analysis
from irgraph.analyze.figures import StepFigures
from irgraph.diagnostics import fail, suggestion

COMPARE_GROUPINGS = (*GROUPINGS, "host")
"""Keys by which device work can be grouped, and ``host`` for the host's time by operator."""

_FIGURES = {
    "step": "time",
    "GPU active": "active",
    "GPU idle": "idle",
    "compute": "compute",
    "copies": "copies",
    "exposed communication": "exposed",
}


class TimeChange(Struct, frozen=True):
    """Microseconds and calls per step of one part, before and after.

    Attributes:
        name: of the operator, kernel, family, module or phase; or of a figure of the step.
        before, after: microseconds per step; 0 if the part is missing.
        calls_before, calls_after: calls per step; 0 for figures of the step.
    """

    name: str
    before: float
    after: float
    calls_before: float = 0.0
    calls_after: float = 0.0

    @property
    def delta(self) -> float:
        """Difference in microseconds per step."""
        return self.after - self.before

    @property
    def status(self) -> str:
        """``new``, ``gone``, ``called at another rate``, or ``""``."""
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
            "what": self.status,
        }


def compare(
    before: Analysis, after: Analysis, grouping: str = "op"
) -> tuple[list[TimeChange], list[TimeChange]]:
    """Return the changes of the mean typical step and of its parts, the largest part first.

    Parts are matched by name. The deltas of the parts add up to the delta of their sum: all device
    work (more than the active time if streams overlap), or with ``host`` all time in operators.

    Args:
        before: the analysis of the original traces.
        after: the analysis of other traces of the same program.
        grouping: one of ``COMPARE_GROUPINGS``.

    Raises:
        IrgraphError: ``grouping`` is unknown, or groups device work and a trace has none (exit
            code 2).
    """
    if grouping not in COMPARE_GROUPINGS:
        hint = f"known: {', '.join(COMPARE_GROUPINGS)}"
        raise fail(
            f"no breakdown by {grouping!r}{suggestion(grouping, COMPARE_GROUPINGS)}",
            hint=hint,
            exit_code=2,
        )
    if grouping != "host" and None in (before.covered, after.covered):
        hint = "--by host parts the time of the host"
        raise fail(f"a trace has no device work to part by {grouping}", hint=hint, exit_code=2)
    old, new = _parts(before, grouping), _parts(after, grouping)
    absent = (0.0, 0.0)
    parts = [TimeChange(name, *_pair(old, new, name, absent)) for name in {**old, **new}]
    first, second = _step_means(before.steps), _step_means(after.steps)
    figures = [
        TimeChange(name, time, second[name]) for name, time in first.items() if name in second
    ]
    return figures, sorted(parts, key=lambda part: -abs(part.delta))


def _pair(
    old: dict[str, tuple[float, float]],
    new: dict[str, tuple[float, float]],
    name: str,
    absent: tuple[float, float],
) -> tuple[float, float, float, float]:
    (time_before, calls_before), (time_after, calls_after) = (
        old.get(name, absent),
        new.get(name, absent),
    )
    return time_before, time_after, calls_before, calls_after


def _parts(analysis: Analysis, grouping: str) -> dict[str, tuple[float, float]]:
    if grouping == "host":
        return {name: (self_us, calls) for name, (self_us, _, calls) in analysis.host.items()}
    return dict(analysis.breakdowns[grouping])


def _step_means(steps: Iterable[StepFigures]) -> dict[str, float]:
    """Return the means of the typical steps; device figures only if the trace has a device."""
    typical = [step for step in steps if not step.left_out]
    fields = _FIGURES if any(step.on_device for step in typical) else {"step": "time"}
    return {
        name: float(np.mean([getattr(step, field) for step in typical]))
        for name, field in fields.items()
        if typical
    }
