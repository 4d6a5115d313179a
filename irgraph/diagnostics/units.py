"""Physical ranges of figures, and the units that a figure outside of its range may be in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of figures in files.

    Attributes:
        name: such as ``GB/s``.
        others: units that are confused with it, and their sizes in this unit.
    """

    name: str
    others: tuple[tuple[str, float], ...]


BANDWIDTH = Unit("GB/s", (("TB/s", 1e3), ("MB/s", 1e-3), ("B/s", 1e-9)))
FREQUENCY = Unit("MHz", (("GHz", 1e3), ("kHz", 1e-3), ("Hz", 1e-6)))
RATE = Unit("GFLOP/s", (("TFLOP/s", 1e3), ("PFLOP/s", 1e6), ("MFLOP/s", 1e-3), ("FLOP/s", 1e-9)))
BYTES = Unit("bytes", (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)))
POWER = Unit("W", (("kW", 1e3), ("mW", 1e-3)))
TIME = Unit("us", (("s", 1e6), ("ms", 1e3), ("ns", 1e-3)))


def range_error(field: str, value: float, low: float, high: float, unit: Unit) -> str:
    """Return the reason why a field is outside of its range, ``""`` if it is inside.

    The reason names the unit that may have been meant, and the figure in the field's unit.
    """
    if low <= value <= high:
        return ""
    limits = f"between {low:,g} and {high:,g} {unit.name}"
    return (
        f"{field} is {value:,g} {unit.name}, {limits} is possible{_guess(value, low, high, unit)}"
    )


def _guess(value: float, low: float, high: float, unit: Unit) -> str:
    for name, size in unit.others:
        if low <= value * size <= high:
            return f"; if it is in {name}, write {value * size:.6g}"
    return ""
