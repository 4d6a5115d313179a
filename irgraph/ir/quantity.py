"""Numbers with a unit and a spread, as notes and scripts write them: ``41.2us +- 2.1us``."""

from __future__ import annotations

from msgspec import Struct


class Quantity(Struct, frozen=True):
    """A number with a unit.

    Attributes:
        value: the number.
        unit: such as ``us``, ``KiB`` or ``%``.
        spread: half the width of its interval, in the same unit.
    """

    value: float
    unit: str
    spread: float = 0.0

    def __str__(self) -> str:
        spread = f" +- {_short(self.spread)}{self.unit}" if self.spread else ""
        return f"{_short(self.value)}{self.unit}{spread}"


def _short(number: float) -> str:
    return repr(float(number)).removesuffix(".0")
