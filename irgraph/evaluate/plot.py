"""A plot of a comparison: signed errors by workload, as in the paper's Figure 9."""

from __future__ import annotations

import re

from irgraph.evaluate.comparison import Comparison, Series
from irgraph.text.diagnostics import fail

WIDTH = 0.8
"""Share of a workload's place on the axis that its bars take together."""


def draw(comparison: Comparison, path: str) -> None:
    """Draw one panel a quantity, one group of bars a workload, one colour a predictor.

    Raises ``IrgraphError`` where matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        hint = "pip install 'irgraph[plot]'"
        raise fail("plots need matplotlib", hint=hint, exit_code=2) from None
    with mpl.rc_context({"font.size": 8}):
        count = len(comparison.series)
        figure = Figure(figsize=(10, 2.6 * count), constrained_layout=True)
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


def bars(series: Series) -> dict[str, list[float]]:
    """Return each predictor's signed errors in percent, workload by workload."""
    found = {"irgraph": [100.0 * point.error for point in series.points]}
    for who in series.points[0].others:
        label = f"{who}, without sign" if series.unsigned else who
        found[label] = [100.0 * point.others[who] for point in series.points]
    return found
