"""Figures of variants that may be sought or limited, their units, and limits as texts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from msgspec import Struct

from irgraph.diagnostics import fail, suggestion
from irgraph.predict.limits import parse_bytes, parse_time

DEVICE = "device"
"""A limit of memory: what the variant's device has."""


class VariantFigure(Struct, frozen=True):
    """A figure that variants have.

    Attributes:
        name: as objectives and limits call it.
        unit: as texts show it.
        more: whether more of it is better, so that a limit is the least.
        scale: what it is divided by where texts show it.
    """

    name: str
    unit: str
    higher_is_better: bool = False
    scale: float = 1.0

    def text(self, value: float) -> str:
        """Return a value with its unit."""
        return f"{value / self.scale:,.{_digits(value / self.scale)}f} {self.unit}"


def _digits(value: float) -> int:
    """Return the decimals by which four figures are shown, none of a large number."""
    return max(0, min(6, 3 - math.floor(math.log10(abs(value))))) if value else 0


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
"""``step.time`` and ``gpu.active``: microseconds; ``memory.peak``: bytes of tensors, workspace and
context; ``throughput``: samples a second of all ranks; ``price``: USD for a million samples."""


def figure(name: str, context: str) -> VariantFigure:
    """Return a figure by name; raise ``IrgraphError`` (exit code 2) where there is none."""
    if name not in FIGURES:
        hint = f"figures: {', '.join(FIGURES)}"
        raise fail(
            f"{context}: unknown figure {name!r}{suggestion(name, FIGURES)}", hint=hint, exit_code=2
        )
    return FIGURES[name]


def limit(name: str, bound: object) -> float | str:
    """Return a limit in the figure's unit (microseconds, bytes), or ``device``.

    Raises ``IrgraphError`` (exit code 2) for an unknown figure, and for what is no limit of it.
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
    """Return a limit as people read it: ``at most 20.00 ms``."""
    way = "at least" if FIGURES[name].higher_is_better else "at most"
    return f"{way} {bound if isinstance(bound, str) else FIGURES[name].text(bound)}"


def excess(name: str, value: float, bound: float) -> float:
    """Return by which share of a limit a figure breaks it; 0 or less where it does not."""
    return bound / value - 1 if FIGURES[name].higher_is_better else value / bound - 1
