"""What a figure of matplotlib shows, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from matplotlib.container import BarContainer

NAMED = ("FixedFormatter", "FuncFormatter")
"""What gives ticks names in place of numbers."""


def described(figure: Any) -> str:
    """Return titles, names, data and words of each panel that is shown, a line each."""
    heading = [figure.get_suptitle()] if figure.get_suptitle() else []
    panels = ["\n".join(_panel(axes)) for axes in figure.axes if axes.axison]
    return "\n\n".join([*heading, *panels]) + "\n"


def _panel(axes: Any) -> Iterator[str]:
    yield f"## {axes.get_title(loc='left')}"
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        low, high = map(_number, axis.get_view_interval())
        yield f"{name}: {axis.get_label_text()} ({axis.get_scale()}, {low} to {high})"
        if type(axis.get_major_formatter()).__name__ in NAMED:
            yield f"{name} names: {_joined(tick.get_text() for tick in axis.get_ticklabels())}"
    for bars in axes.containers:
        if isinstance(bars, BarContainer):
            yield f"bars {bars.get_label()}: {_joined(map(_box, bars.patches))}"
    for line in axes.lines:
        points = zip(*line.get_data(), strict=True)
        yield f"line {line.get_label()}: {_joined(' '.join(map(_number, p)) for p in points)}"
    if axes.texts:
        yield f"words: {_joined(text.get_text() for text in axes.texts)}"
    if axes.get_legend():
        yield f"legend: {_joined(text.get_text() for text in axes.get_legend().get_texts())}"


def _box(patch: Any) -> str:
    left, low = _number(patch.get_x()), _number(patch.get_y())
    return f"{_number(patch.get_width())} x {_number(patch.get_height())} at {left} {low}"


def _number(value: float) -> str:
    return f"{round(float(value), 6) + 0.0:.4g}"


def _joined(parts: Iterable[str]) -> str:
    return " | ".join(part.replace("\n", " / ") for part in parts)
