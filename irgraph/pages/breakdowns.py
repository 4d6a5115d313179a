"""Breakdowns of a step's time, as tables with bars: by cause, operation, module and family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from irgraph.html import sections
from irgraph.html.sections import Section

ROWS = 400
"""Rows of a breakdown; the rest is summed up in one more."""

BESIDE = ("before", "after")


def shares(name: str, title: str, what: str, times: Mapping[str, float], total: float) -> Section:
    """Return a breakdown: microseconds by ``what``, and their shares of ``total``."""
    items = list(times.items())
    rest = sum(time for _, time in items[ROWS:])
    rows = [
        (label or "(none)", time, time / total if total else None)
        for label, time in items[:ROWS] + ([("the rest", rest)] if rest else [])
    ]
    columns = ((what, "text"), ("time", "us"), ("share", "share"))
    return sections.table(name, title, columns, rows, bars=("time",))


def of_prediction(summary: Mapping[str, Any]) -> Section:
    """Return the breakdowns of a predicted step (``Prediction.summary``)."""
    total = summary["step_time_us"]
    families = {family: found["time_us"] for family, found in summary["kernels"].items()}
    parts = {
        "by cause": shares(
            "path-by-cause", "critical path by cause", "cause", summary["critical_path_us"], total
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
    name: str, title: str, what: str, times: Mapping[str, Sequence[float]], text: str = ""
) -> Section:
    """Return a breakdown of two steps: microseconds before and after, and the change."""
    rows = [
        (label or "(none)", first, second, second - first)
        for label, (first, second) in list(times.items())[:ROWS]
    ]
    columns = ((what, "text"), *((label, "us") for label in BESIDE), ("change", "change"))
    return sections.table(name, title, columns, rows, bars=BESIDE, text=text)


def what_ifs(sensitivity: Mapping[str, Any], unvalidated: str) -> Section:
    """Return what the step would take if parts of it were faster."""
    keys = ("name", "module", "count", "step_time_us", "saved_us")
    usual = {"module": "", "count": 1}
    ops = [[{**usual, **row}[key] for key in keys] for row in sensitivity["ops"]]
    groups = [
        (row["name"], row["kind"], row["step_time_us"], row["saved_us"])
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
