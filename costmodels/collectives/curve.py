"""Time of a collective over message size: measured tables, and lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct


class Curve(Protocol):
    """Time of a collective by message size."""

    def time(self, nbytes: float) -> float:
        """Return the microseconds of a message of ``nbytes`` bytes."""


class CurveTable(Struct, frozen=True):
    """Measured points; between two, the logarithm of time is linear in the logarithm of size.

    Below the smallest size the time is constant, above the largest it is proportional to size.

    Attributes:
        sizes: bytes, increasing.
        times: microseconds.
    """

    sizes: tuple[float, ...]
    times: tuple[float, ...]

    def time(self, nbytes: float) -> float:
        """Return the microseconds of a message of ``nbytes`` bytes."""
        if nbytes <= self.sizes[0]:
            return self.times[0]
        beyond = max(1.0, nbytes / self.sizes[-1])
        logs = np.interp(np.log(nbytes), np.log(self.sizes), np.log(self.times))
        return float(np.exp(logs)) * beyond


class Form(Struct, frozen=True):
    """Points that are interpolated, or else latency and bandwidth: ``alpha + S / B``.

    Attributes:
        alpha: microseconds of the smallest message.
        per_byte: ``1 / B``, microseconds a byte.
        error: mean absolute relative error of leave-one-out predictions of the points.
        source: source of the points.
        largest: bytes of the largest measured message, 0 if unknown.
        points: table that is interpolated instead of the line.
        measured: whether this many ranks on this many machines were measured on the platform.
    """

    alpha: float
    per_byte: float
    error: float = 0.0
    source: str = ""
    largest: float = 0.0
    points: CurveTable | None = None
    measured: bool = True

    def time(self, nbytes: float) -> float:
        """Return the microseconds of a message of ``nbytes`` bytes."""
        if self.points is not None:
            return self.points.time(nbytes)
        return self.alpha + self.per_byte * nbytes


def table(sizes: Sequence[float], times: Sequence[float]) -> CurveTable:
    """Return points as a table, sorted by size."""
    pairs = sorted(zip(sizes, times, strict=True))
    return CurveTable(tuple(s for s, _ in pairs), tuple(t for _, t in pairs))
