"""Time of a collective over message size: measured tables, and a form fitted to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain, combinations
from typing import Protocol

import numpy as np
from msgspec import Struct


class Curve(Protocol):
    """Time of a collective by message size."""

    def time(self, nbytes: float) -> float:
        """Return the microseconds for a message of so many bytes."""


class Table(Struct, frozen=True):
    """Measured points; between two, the logarithm of time is linear in that of size.

    Below the smallest size the time is the smallest's, above the largest it grows as the size.

    Attributes:
        sizes: bytes, rising.
        times: microseconds.
    """

    sizes: tuple[float, ...]
    times: tuple[float, ...]

    def time(self, nbytes: float) -> float:
        """Return the microseconds for a message of so many bytes."""
        if nbytes <= self.sizes[0]:
            return self.times[0]
        beyond = max(1.0, nbytes / self.sizes[-1])
        logs = np.interp(np.log(nbytes), np.log(self.sizes), np.log(self.times))
        return float(np.exp(logs)) * beyond


class Form(Struct, frozen=True):
    """``alpha + S / B + c sqrt(S)``: latency, bandwidth, and what lies between them.

    Attributes:
        alpha: microseconds of the smallest message.
        per_byte: ``1 / B``, microseconds a byte.
        per_root: ``c``, microseconds by the square root of bytes.
        error: mean absolute relative error where each point was left out in turn.
        source: where the points come from.
        largest: bytes of the largest message that was measured, 0 where nobody says.
        points: measured points, if they are to be interpolated in place of all that.
    """

    alpha: float
    per_byte: float
    per_root: float = 0.0
    error: float = 0.0
    source: str = ""
    largest: float = 0.0
    points: Table | None = None

    def time(self, nbytes: float) -> float:
        """Return the microseconds for a message of so many bytes."""
        if self.points is not None:
            return self.points.time(nbytes)
        return self.alpha + self.per_byte * nbytes + self.per_root * math.sqrt(nbytes)


def fit(sizes: Sequence[float], times: Sequence[float]) -> Form:
    """Return the form with the least squares of relative errors, no parameter below zero.

    The best of all subsets of the three terms whose plain solution is not negative.
    """
    size, time = np.asarray(sizes, float), np.asarray(times, float)
    terms = np.stack([np.ones_like(size), size, np.sqrt(size)], axis=1) / time[:, None]
    best, least = np.zeros(3), np.inf
    for kept in chain.from_iterable(combinations(range(3), n) for n in (1, 2, 3)):
        found = np.zeros(3)
        found[list(kept)] = np.linalg.lstsq(terms[:, kept], np.ones_like(time), rcond=None)[0]
        rest = float(np.sum((terms @ found - 1.0) ** 2))
        if (found >= 0.0).all() and rest < least:
            best, least = found, rest
    alpha, per_byte, per_root = best.tolist()
    return Form(alpha, per_byte, per_root)


def leave_one_out(
    sizes: Sequence[float],
    times: Sequence[float],
    make: Callable[[Sequence[float], Sequence[float]], Curve],
) -> list[float]:
    """Return the signed relative error at each inner point of a curve made from the others."""
    errors = []
    for at in range(1, len(sizes) - 1):
        rest = [i for i in range(len(sizes)) if i != at]
        curve = make([sizes[i] for i in rest], [times[i] for i in rest])
        errors.append(curve.time(sizes[at]) / times[at] - 1.0)
    return errors


def table(sizes: Sequence[float], times: Sequence[float]) -> Table:
    """Return points as a table, sorted by size."""
    pairs = sorted(zip(sizes, times, strict=True))
    return Table(tuple(s for s, _ in pairs), tuple(t for _, t in pairs))
