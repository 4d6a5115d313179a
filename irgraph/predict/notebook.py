"""Tables and plots of predictions and differences for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from irgraph.html.fragments import table_html
from irgraph.predict.tables import figure_rows
from irgraph.predict.validation import validation_text
from irgraph.report.console import bytes_text, time_text
from irgraph.report.plots import BLUE, GREY, ORANGE, Plot, matplotlib
from irgraph.schedule.critical_path import CriticalPath
from irgraph.schedule.intervals import by_cause_name, cause_name
from irgraph.schedule.timeline import Intervals, Timeline

MAX_ROWS = 8
"""Maximum number of rows of a breakdown in a notebook."""

HOST_LABEL = "host"
"""Label in plots of the work that is not done by kernels."""


def prediction_html(summary: Mapping[str, Any]) -> str:
    """Return the figures of a prediction and its critical path by cause, as HTML."""
    rows = [row for row in figure_rows(summary) if row[0] != "of that"]
    step = summary["step_time_us"] or 1.0
    causes = list(summary["critical_path_us"].items())[:MAX_ROWS]
    path = [(cause_name(cause), time_text(time), f"{time / step:.1%}") for cause, time in causes]
    shares = table_html("critical path by cause", path, ("cause", "time", "share"))
    return table_html(summary["model"], rows) + shares


def difference_html(summary: Mapping[str, Any]) -> str:
    """Return the change of the step time and its parts, as HTML."""
    low, high = (time_text(end) for end in summary["step_time_change_interval_us"])
    path = by_cause_name(summary["critical_path_us"])
    pairs = {**summary["figures"], **dict(list(path.items())[:MAX_ROWS])}
    rows = [
        (name.removesuffix("_us").replace("_", " "), *_pair(*times))
        for name, times in pairs.items()
    ]
    peaks = summary["memory_peak_bytes"]
    before, after, change = map(bytes_text, (*peaks, peaks[1] - peaks[0]))
    rows.append(("peak memory of tensors", before, after, change))
    note = f"90 % interval of the change: {low} to {high}; {validation_text(summary['validation'])}"
    return table_html(" → ".join(summary["models"]), rows, ("", "before", "after", "change"), note)


def _pair(before: float, after: float) -> tuple[str, str, str]:
    change = f"{'+' if after > before else ''}{time_text(after - before)}"
    return time_text(before), time_text(after), change


def plot_step(timeline: Timeline, path: CriticalPath, title: str) -> Plot:
    """Draw host threads and streams over time, and the critical path above them.

    Raises ``IrgraphError`` if matplotlib is not installed.
    """
    mpl = matplotlib()
    columns, tasks = timeline.columns, timeline.columns.tasks
    families = [kernel.family for kernel in columns.kernels]
    colours = _colours(mpl, columns)
    work = tasks.has_cause("kernel") & (tasks.kernel >= 0)
    fills = [
        colours[families[k]] if runs else colours[HOST_LABEL]
        for k, runs in zip(tasks.kernel.tolist(), work.tolist(), strict=True)
    ]
    size = (11, 1.6 + 0.4 * len(timeline.resources))
    figure = mpl.figure.Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    host = np.array([r.kind == "host" for r in timeline.resources] or [False])[tasks.resource]
    lanes = [("critical path", path.chain)]
    lanes += [
        (str(resource), np.flatnonzero((work | host) & (tasks.resource == number)))
        for number, resource in enumerate(timeline.resources)
    ]
    for lane, (_, interval_indices) in enumerate(lanes):
        spans = (
            np.stack([columns.start, columns.end - columns.start], axis=1)[interval_indices] / 1000
        )
        axes.broken_barh(
            spans.tolist(), (-lane - 0.4, 0.8), color=[fills[i] for i in interval_indices]
        )
    axes.set_yticks([-lane for lane in range(len(lanes))], [name for name, _ in lanes])
    axes.set_xlabel("ms")
    axes.set_title(title)
    keys = [mpl.patches.Patch(color=colour, label=name) for name, colour in colours.items()]
    axes.legend(handles=keys, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)
    return Plot(figure)


def _colours(mpl: Any, columns: Intervals) -> dict[str, Any]:  # noqa: ANN401  (matplotlib)
    """Return a colour for each family, the longest first, and one for the host."""
    times: dict[str, float] = {}
    for kernel in columns.kernels:
        times[kernel.family] = times.get(kernel.family, 0.0) + kernel.time
    shades = mpl.colormaps["tab20"]
    names = sorted(times, key=lambda name: -times[name])
    return {HOST_LABEL: GREY, **{name: shades(number % 20) for number, name in enumerate(names)}}


def plot_change(summary: Mapping[str, Any]) -> Plot:
    """Draw the critical path by cause, before and after (``Difference.summary``).

    Raises ``IrgraphError`` if matplotlib is not installed.
    """
    mpl = matplotlib()
    pairs = list(summary["critical_path_us"].items())[:MAX_ROWS][::-1]
    figure = mpl.figure.Figure(figsize=(9, 1.2 + 0.4 * len(pairs)), layout="constrained")
    axes, positions = figure.subplots(), np.arange(len(pairs))
    for name, colour, side, move in (("before", GREY, 0, 0.2), ("after", BLUE, 1, -0.2)):
        axes.barh(
            positions + move,
            [times[side] / 1000 for _, times in pairs],
            0.4,
            label=name,
            color=colour,
        )
    axes.set_yticks(positions, [cause_name(cause) for cause, _ in pairs])
    axes.set_xlabel("ms on the critical path")
    change = summary["step_time_change_us"]
    span = " to ".join(map(time_text, summary["step_time_change_interval_us"]))
    axes.set_title(
        f"step time {time_text(change)} ({span})", color=ORANGE if change > 0 else "black"
    )
    axes.legend(frameon=False)
    return Plot(figure)
