"""Plots: signed errors by workload, as in the paper's Figure 9, and of kernels by size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from irgraph.evaluate.comparison import Comparison, Series
from irgraph.evaluate.kernels import Residuals
from irgraph.text.diagnostics import fail

WIDTH = 0.8
"""Share of a workload's place on the axis that its bars take together."""


def draw(comparison: Comparison, path: str) -> None:
    """Draw one panel a quantity, one group of bars a workload, one colour a predictor.

    Raises ``IrgraphError`` where matplotlib is not installed.
    """
    mpl = _matplotlib()
    with mpl.rc_context({"font.size": 8}):
        count = len(comparison.series)
        figure = mpl.figure.Figure(figsize=(10, 2.6 * count), constrained_layout=True)
        panels = figure.subplots(count, 1, squeeze=False)
        for panel, series in zip(panels[:, 0], comparison.series, strict=True):
            heights = bars(series)
            for number, (who, errors) in enumerate(heights.items()):
                width = WIDTH / len(heights)
                places = [at - WIDTH / 2 + (number + 0.5) * width for at in range(len(errors))]
                panel.bar(places, errors, width, label=who)
            names = [re.sub(r", |(?<=d\.)", "\n", point.workload) for point in series.points]
            panel.set_xticks(range(len(names)), names, rotation=0 if len(names) < 10 else 60)
            panel.axhline(0.0, color="black", linewidth=0.6)
            panel.set_ylabel("error, %")
            panel.set_title(series.quantity, loc="left")
            panel.legend(loc="best", frameon=False)
        figure.savefig(path, dpi=160)


def draw_residuals(residuals: Sequence[Residuals], path: str) -> None:
    """Draw signed errors over measured time, one panel a family, one colour a device.

    Raises ``IrgraphError`` where matplotlib is not installed.
    """
    mpl = _matplotlib()
    families = sorted({part.family for part in residuals})
    devices = sorted({part.device for part in residuals})
    with mpl.rc_context({"font.size": 8}):
        figure = mpl.figure.Figure(figsize=(10, 2.6 * len(families)), constrained_layout=True)
        panels = figure.subplots(len(families), 1, squeeze=False)
        for panel, family in zip(panels[:, 0], families, strict=True):
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
        panels[-1, 0].set_xlabel("measured, ms")
        figure.savefig(path, dpi=160)


def _matplotlib() -> Any:  # noqa: ANN401  (a module that is loaded here)
    """Return matplotlib, or say that it is missing."""
    try:
        import matplotlib as mpl
        import matplotlib.figure
    except ImportError:
        hint = "pip install 'irgraph[plot]'"
        raise fail("plots need matplotlib", hint=hint, exit_code=2) from None
    return mpl


def bars(series: Series) -> dict[str, list[float]]:
    """Return each predictor's signed errors in percent, workload by workload."""
    found = {"irgraph": [100.0 * point.error for point in series.points]}
    for who in series.points[0].others:
        label = f"{who}, without sign" if series.unsigned else who
        found[label] = [100.0 * point.others[who] for point in series.points]
    return found
