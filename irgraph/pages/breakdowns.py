"""Breakdowns of a step's time, as tables with bars: by cause, operation, module and family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from irgraph.html import sections
from irgraph.html.sections import Section
from irgraph.predict.figures import group_name
from irgraph.schedule.intervals import by_cause_name

MAX_ROWS = 400
"""Maximum number of rows of a breakdown; one more has the sum of the rest."""

SIDES = ("before", "after")


def shares(
    name: str, title: str, heading: str, times: Mapping[str, float], total: float
) -> Section:
    """Return a breakdown: microseconds by ``heading``, and their shares of ``total``."""
    items = list(times.items())
    rest = sum(time for _, time in items[MAX_ROWS:])
    rows = [
        (label or "(none)", time, time / total if total else None)
        for label, time in items[:MAX_ROWS] + ([("the rest", rest)] if rest else [])
    ]
    columns = ((heading, "text"), ("time", "us"), ("share", "share"))
    return sections.table(name, title, columns, rows, bars=("time",))


def prediction_breakdowns(summary: Mapping[str, Any]) -> Section:
    """Return the breakdowns of a predicted step (``Prediction.summary``)."""
    total = summary["step_time_us"]
    families = {family: figures["time_us"] for family, figures in summary["kernels"].items()}
    parts = {
        "by cause": shares(
            "path-by-cause",
            "critical path by cause",
            "cause",
            by_cause_name(summary["critical_path_us"]),
            total,
        ),
        "by operation": shares(
            "path-by-op",
            "critical path by operation",
            "operation",
            summary["critical_ops_us"],
            total,
        ),
        "by module": shares(
            "path-by-module",
            "critical path by module",
            "module",
            summary["critical_modules_us"],
            total,
        ),
        "device work by family": shares(
            "work-by-family",
            "device work by kernel family",
            "family",
            families,
            sum(families.values()),
        ),
    }
    text = "Shares of the critical path add up to the step time; device work may overlap."
    return sections.tabs("breakdown", "Where the time goes", parts, text=text)


def pairs(
    name: str, title: str, heading: str, times: Mapping[str, Sequence[float]], text: str = ""
) -> Section:
    """Return a breakdown of two steps: microseconds before and after, and the change."""
    rows = [
        (label or "(none)", first, second, second - first)
        for label, (first, second) in list(times.items())[:MAX_ROWS]
    ]
    columns = ((heading, "text"), *((label, "us") for label in SIDES), ("change", "change"))
    return sections.table(name, title, columns, rows, bars=SIDES, text=text)


def what_ifs(sensitivity: Mapping[str, Any], unvalidated: str) -> Section:
    """Return tables of the step's time if parts of it were faster."""
    keys = ("name", "module", "count", "step_time_us", "saved_us")
    defaults = {"module": "", "count": 1}
    ops = [[{**defaults, **row}[key] for key in keys] for row in sensitivity["ops"]]
    groups = [
        (group_name(row), row["kind"], row["step_time_us"], row["saved_us"])
        for row in sensitivity["groups"]
    ]
    factor = f"{sensitivity['factor']:g}x"
    times = (("step time", "us"), ("saved", "us"))
    parts = {
        "one operation": sections.table(
            "faster-ops",
            f"step time if one operation were {factor} faster",
            (("operation", "text"), ("module", "text"), ("alike", "number"), *times),
            ops,
            bars=("saved",),
            text="Times are for a single one of those that are alike.",
        ),
        "a kind of work": sections.table(
            "faster-groups",
            f"step time if a kind of work were {factor} faster",
            (("what", "text"), ("kind", "text"), *times),
            groups,
            bars=("saved",),
        ),
    }
    text = f"The step, simulated again, if something were {factor} faster; {unvalidated}."
    return sections.tabs("sensitivity", "What would help", parts, text=text)
