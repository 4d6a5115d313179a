"""What a change is worth: two predictions side by side."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from rich.table import Table

from irgraph.predict import Prediction
from irgraph.report.prediction import LONGEST, time_text


def compare(before: Prediction, after: Prediction) -> dict[str, Any]:
    """Return the differences of two predictions as plain values; times in microseconds."""
    first, second = before.summary(), after.summary()
    figures = ("step_time_us", "gpu_active_us", "gpu_idle_us", "host_waits_us")
    counts = [Counter(op.name for op in p.priced.graph.walk()) for p in (before, after)]
    names = sorted(counts[0] | counts[1])
    return {
        "models": _names(before, after),
        "device": first["device"]["name"],
        "host": first["host"],
        "figures": {name: [first[name], second[name]] for name in figures},
        "step_time_change_us": second["step_time_us"] - first["step_time_us"],
        "step_time_change_spread_us": math.hypot(before.spread, after.spread),
        "critical_path_us": _beside(first["critical_path_us"], second["critical_path_us"]),
        "kernels_us": _beside(_times(first), _times(second)),
        "ops": {n: [c[n] for c in counts] for n in names if counts[0][n] != counts[1][n]},
        "unknown": [first["unknown"], second["unknown"]],
        "assumptions": second["assumptions"],
    }


def _names(before: Prediction, after: Prediction) -> list[str]:
    """Return what to call the two models: their names, or their files where those are equal."""
    first, second = before.priced.graph, after.priced.graph
    if first.name != second.name or not (first.source and second.source):
        return [first.name, second.name]
    return [first.source, second.source]


def _times(summary: dict[str, Any]) -> dict[str, float]:
    return {family: figures["time_us"] for family, figures in summary["kernels"].items()}


def _beside(first: dict[str, float], second: dict[str, float]) -> dict[str, list[float]]:
    names = sorted(first.keys() | second.keys(), key=lambda n: -_change(first, second, n))
    return {name: [first.get(name, 0.0), second.get(name, 0.0)] for name in names}


def _change(first: dict[str, float], second: dict[str, float], name: str) -> float:
    return abs(second.get(name, 0.0) - first.get(name, 0.0))


def difference_tables(result: dict[str, Any]) -> list[Table]:
    """Return the differences as tables."""
    title = f"{result['device']}, host {result['host']}"
    table = Table("", *result["models"], "change", "", title=title)
    table.title_justify = "left"
    for name, (first, second) in result["figures"].items():
        label = name.removesuffix("_us").replace("_", " ")
        table.add_row(label, time_text(first), time_text(second), *_changes(first, second))
    spread = time_text(result["step_time_change_spread_us"])
    table.caption = f"interval of the change: +- {spread} (kernels on the critical paths)"
    for reason in result["assumptions"]:
        table.caption += f"\nrests on: {reason}"
    return [
        table,
        _pairs("critical path by cause", result["critical_path_us"]),
        _pairs("device work by kernel family", result["kernels_us"]),
        _ops(result["ops"]),
    ]


def _changes(first: float, second: float) -> tuple[str, str]:
    share = f"{second / first - 1:+.1%}" if first else ""
    sign = "+" if second > first else ""
    return f"{sign}{time_text(second - first)}", share


def _pairs(title: str, pairs: dict[str, list[float]]) -> Table:
    table = Table("", "before", "after", "change", "", title=title, title_justify="left")
    for name, (first, second) in list(pairs.items())[:LONGEST]:
        table.add_row(name, time_text(first), time_text(second), *_changes(first, second))
    return table


def _ops(ops: dict[str, list[int]]) -> Table:
    table = Table("op", "before", "after", title="ops added and removed", title_justify="left")
    for name, (first, second) in ops.items():
        table.add_row(name, str(first), str(second))
    if not ops:
        table.caption = "none"
    return table
