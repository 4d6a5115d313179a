"""Figures of variants for objectives and limits, their units, and limits as texts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from msgspec import Struct

from irgraph.diagnostics import fail, suggestion
from irgraph.diagnostics.quantities import parse_bytes, parse_time

DEVICE = "device"
"""A limit of memory: the memory of the variant's device."""


class VariantFigure(Struct, frozen=True):
    """A figure of variants.

    Attributes:
        name: name in objectives and limits.
        unit: unit in texts.
        higher_is_better: whether larger values are better, so that a limit is a minimum.
        scale: divisor from values to the unit in texts.
    """

    name: str
    unit: str
    higher_is_better: bool = False
    scale: float = 1.0

    def text(self, value: float) -> str:
        """Return a value with its unit."""
        return f"{value / self.scale:,.{_digits(value / self.scale)}f} {self.unit}"


def _digits(value: float) -> int:
    """Return the number of decimals for four significant digits, 0 for a large number."""
    if not value or not math.isfinite(value):
        return 0
    return max(0, min(6, 3 - math.floor(math.log10(abs(value)))))


FIGURES: Mapping[str, VariantFigure] = {
    figure.name: figure
    for figure in (
        VariantFigure("step.time", "ms", scale=1e3),
        VariantFigure("gpu.active", "ms", scale=1e3),
        VariantFigure("memory.peak", "GiB", scale=2**30),
        VariantFigure("throughput", "samples/s", higher_is_better=True),
        VariantFigure("price", "USD per million samples"),
    )
}
"""Figures by name. ``step.time`` and ``gpu.active``: microseconds; ``memory.peak``: bytes of
tensors, workspace and context; ``throughput``: samples per second of all ranks; ``price``: USD per
million samples."""


def figure(name: str, context: str) -> VariantFigure:
    """Return a figure by name; raise ``IrgraphError`` (exit code 2) for an unknown one."""
    if name not in FIGURES:
        hint = f"figures: {', '.join(FIGURES)}"
        raise fail(
            f"{context}: unknown figure {name!r}{suggestion(name, FIGURES)}", hint=hint, exit_code=2
        )
    return FIGURES[name]


def limit(name: str, bound: object) -> float | str:
    """Return a limit in the figure's unit (microseconds, bytes), or ``device``.

    Raises ``IrgraphError`` (exit code 2) for an unknown figure or an invalid limit.
    """
    context = f"limits: {figure(name, 'limits').name}"
    if name == "memory.peak":
        return DEVICE if bound == DEVICE else parse_bytes(str(bound), context)
    if name in ("step.time", "gpu.active"):
        return parse_time(str(bound), context)
    if isinstance(bound, bool) or not re.fullmatch(r"\d+(\.\d*)?(e\d+)?", str(bound)):
        raise fail(f"{context}: give a number above 0, not {bound!r}", exit_code=2)
    value = float(str(bound))
    if not 0 < value < math.inf:
        raise fail(f"{context}: give a number above 0, not {bound!r}", exit_code=2)
    return value


def limit_text(name: str, bound: float | str) -> str:
    """Return a limit as text, such as ``at most 20.00 ms``."""
    way = "at least" if FIGURES[name].higher_is_better else "at most"
    return f"{way} {bound if isinstance(bound, str) else FIGURES[name].text(bound)}"


def excess(name: str, value: float, bound: float) -> float:
    """Return the relative excess of a figure over its limit; 0 or less if the limit is met."""
    return bound / value - 1 if FIGURES[name].higher_is_better else value / bound - 1
