"""What a change is worth: two predictions side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from irgraph.prediction import Prediction
from irgraph.report.prediction import LONGEST, bytes_text, time_text
from irgraph.report.validation import validation, validation_text
from irgraph.schedule.sampling import interval, sample_steps


def compare(
    before: Prediction, after: Prediction, measured: Sequence[float] | None = None
) -> dict[str, Any]:
    """Return the differences of two predictions as plain values; times in microseconds.

    ``measured`` are the step times of both models, where somebody measured them.
    """
    first, second = before.summary(), after.summary()
    figures = ("step_time_us", "gpu_active_us", "gpu_idle_us", "host_waits_us")
    counts = [Counter(op.name for op in p.priced.graph.walk()) for p in (before, after)]
    names = sorted(counts[0] | counts[1])
    change, around = second["step_time_us"] - first["step_time_us"], _interval(before, after)
    return {
        "models": _names(before, after),
        "device": first["device"]["name"],
        "host": first["host"],
        "figures": {name: [first[name], second[name]] for name in figures},
        "step_time_change_us": change,
        "step_time_change_interval_us": around,
        "validation": validation(change, around, measured),
        "memory_peak_bytes": [before.memory.peak, after.memory.peak],
        "critical_path_us": _beside(first["critical_path_us"], second["critical_path_us"]),
        "kernels_us": _beside(_times(first), _times(second)),
        "ops": {n: [c[n] for c in counts] for n in names if counts[0][n] != counts[1][n]},
        "measured_times": second["measured_times"],
        "collectives": second["collectives"],
        "warnings": second["warnings"],
        "unknown": [first["unknown"], second["unknown"]],
        "assumptions": second["assumptions"],
    }


def _names(before: Prediction, after: Prediction) -> list[str]:
    """Return what to call the two models: their names, or their files where those are equal."""
    first, second = before.priced.graph, after.priced.graph
    if first.name != second.name or not (first.source and second.source):
        return [first.name, second.name]
    return [first.source, second.source]


def _interval(before: Prediction, after: Prediction) -> list[float]:
    """Return a 90 % interval of the change: what both have in common errs alike in both."""
    first, second = (sample_steps(p.timeline, p.host, jitter=False) for p in (before, after))
    return list(interval(second - first))


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
    table.title_justify = table.caption_justify = "left"
    for name, (first, second) in result["figures"].items():
        label = name.removesuffix("_us").replace("_", " ")
        table.add_row(label, time_text(first), time_text(second), *_changes(first, second))
    peaks = result["memory_peak_bytes"]
    sign = "+" if peaks[1] > peaks[0] else ""
    share = f"{peaks[1] / peaks[0] - 1:+.1%}" if peaks[0] else ""
    change = f"{sign}{bytes_text(peaks[1] - peaks[0])}"
    table.add_row("peak memory of tensors", *(bytes_text(peak) for peak in peaks), change, share)
    low, high = (time_text(end) for end in result["step_time_change_interval_us"])
    table.caption = f"90 % interval of the change in step time: {low} to {high}"
    table.caption += f"\n{validation_text(result['validation'])}"
    if result["measured_times"]:
        table.caption += f"\nmeasured kernel times {result['measured_times']}"
    for text in result["collectives"]:
        table.caption += f"\ncollectives: {text}"
    for text in result["warnings"]:
        table.caption += f"\nWARNING: {text}"
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
