"""Console for tables, and the format of times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich.console import Console

from irgraph.diagnostics import visible_text

if TYPE_CHECKING:
    from rich.text import Text


ROUNDING = 1e-9
"""Error of logarithms that must not change a digit."""


class PlainConsole(Console):
    """A console that shows verbatim text, and raises ``BrokenPipeError`` for closed pipes.

    Names from files are neither markup nor emoji nor terminal control sequences.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  (rich's options)
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401
        """Return the text of a cell or title with control characters spelt out."""
        return super().render_str(visible_text(text), **options)

    def on_broken_pipe(self) -> None:
        """Raise ``BrokenPipeError`` instead of exiting."""
        raise BrokenPipeError


def time_text(microseconds: float) -> str:
    """Return a time with a suitable unit."""
    if abs(microseconds) >= 1000:
        return f"{microseconds / 1000:.3f} ms"
    return f"{microseconds:.1f} us"


def bytes_text(count: float) -> str:
    """Return a number of bytes with a suitable unit."""
    return f"{count / 2**30:.2f} GiB" if abs(count) >= 2**30 else f"{count / 2**20:.1f} MiB"


def rounded_times(value: float, low: float, high: float) -> str:
    """Return a time and the ends of its interval with the digits that the interval supports.

    A time is rounded to a tenth of the interval's width, but keeps two digits: 26.497 ms within
    21.2 and 34.1 ms is ``26 ms (21 to 34)``. All arguments are in microseconds.
    """
    unit, scale = _unit(value)
    step = min(_power_of_ten((high - low) / 5), _power_of_ten(value) / 10)
    decimals = max(0, -math.floor(math.log10(step / scale) + ROUNDING))
    rounded = [round(time / step) * step / scale for time in (value, low, high)]
    time, start, end = (f"{number:,.{decimals}f}" for number in rounded)
    return f"{time} {unit} ({start} to {end})"


def _unit(microseconds: float) -> tuple[str, float]:
    """Return the unit in which a time has at most four digits before its point."""
    units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)]
    return next((unit for unit in units if microseconds < 1e3 * unit[1]), units[-1])


def _power_of_ten(value: float) -> float:
    """Return the largest power of ten that is at most ``value``; 1 for 0."""
    return 10.0 ** math.floor(math.log10(value) + ROUNDING) if value > 0 else 1.0
