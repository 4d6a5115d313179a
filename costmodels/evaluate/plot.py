"""Plots: signed errors by workload, as in the paper's Figure 9, and of kernels by size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from costmodels.evaluate.comparison import Comparison, Series
from costmodels.evaluate.kernels import Residuals
from irgraph.report.plots import matplotlib, save

MANY_PANELS, MAX_LABEL_CHARACTERS, SINGLE_COLUMN_INCHES = 4, 85, 10.0
"""Minimum number of panels for two columns (twice as many: three), maximum characters of names
below a panel, and width of a single column in inches."""

WIDTH = 0.8
"""Total width of a workload's bars, as a share of its segment of the axis."""


def draw(comparison: Comparison, path: str) -> None:
    """Draw one panel per quantity, one group of bars per workload, one colour per predictor.

    Raises ``IrgraphError`` if matplotlib is not installed.
    """
    mpl = matplotlib()
    with mpl.rc_context({"font.size": 7}):
        figure, panels = grid(mpl, len(comparison.series))
        for panel, series in zip(panels, comparison.series, strict=True):
            _draw_series(panel, series)
        save(figure, path)


def grid(mpl: Any, count: int) -> tuple[Any, list[Any]]:  # noqa: ANN401  (matplotlib's own)
    """Return a figure with ``count`` panels; many panels are in several columns, as on a slide."""
    columns = 1 if count < MANY_PANELS else 2 if count < 2 * MANY_PANELS else 3
    rows = -(-count // columns)
    size = (SINGLE_COLUMN_INCHES if columns == 1 else 6.0 * columns, 2.7 * rows)
    figure = mpl.figure.Figure(figsize=size, constrained_layout=True)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels[count:]:
        panel.set_axis_off()
    return figure, panels[:count]


def _draw_series(panel: Any, series: Series) -> None:  # noqa: ANN401
    heights = bars(series)
    width = WIDTH / len(heights)
    for number, (predictor, errors) in enumerate(heights.items()):
        positions = [index - WIDTH / 2 + (number + 0.5) * width for index in range(len(errors))]
        panel.bar(positions, errors, width, label=predictor)
    names = [_tick_label(point.workload) for point in series.points]
    rotation: dict[str, Any] = {}
    if sum(max(map(len, name.split("\n"))) for name in names) > MAX_LABEL_CHARACTERS:
        rotation = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
        names = [name.replace("\n", ", ").replace("., ", ".") for name in names]
    panel.set_xticks(range(len(names)), names, **rotation)
    panel.axhline(0.0, color="black", linewidth=0.6)
    panel.set_ylabel("error, %")
    panel.set_title(series.quantity, loc="left")
    if len(heights) > 1:
        panel.legend(loc="best", frameon=False)


def _tick_label(workload: str) -> str:
    """Return a workload's name, in two lines if it has two parts."""
    return re.sub(r", |(?<=d\.)", "\n", workload).replace(" kineto_", " ").removesuffix(" kineto")


def draw_residuals(residuals: Sequence[Residuals], path: str) -> None:
    """Draw signed errors over measured time, one panel per family, one colour per device.

    Raises ``IrgraphError`` if matplotlib is not installed.
    """
    mpl = matplotlib()
    families = sorted({part.family for part in residuals})
    devices = sorted({part.device for part in residuals})
    with mpl.rc_context({"font.size": 8}):
        figure, panels = grid(mpl, len(families))
        for panel, family in zip(panels, families, strict=True):
            for part in (part for part in residuals if part.family == family):
                colour = f"C{devices.index(part.device)}"
                look = {"color": colour, "markersize": 2, "alpha": 0.5, "label": part.device}
                panel.plot(part.times, part.errors, ".", **look)
            panel.axhline(0.0, color="black", linewidth=0.6)
            panel.set_xscale("log")
            panel.set_yscale("symlog", linthresh=10)
            panel.set_ylabel("error, %")
            panel.set_title(f"{family}, held-out shapes", loc="left")
            panel.legend(loc="upper right", frameon=False, markerscale=4)
            panel.set_xlabel("measured, ms")
        save(figure, path)


def bars(series: Series) -> dict[str, list[float]]:
    """Return the signed errors in percent of each predictor, in order of workloads."""
    result = {"irgraph": [100.0 * point.error for point in series.points]}
    for predictor in series.points[0].others:
        label = f"{predictor}, without sign" if series.unsigned else predictor
        result[label] = [100.0 * point.others[predictor] for point in series.points]
    return result
