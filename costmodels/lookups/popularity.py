"""How often each row of an embedding table is looked up.

A distribution is a shape that fits tables of any size; ``rows_of`` lays it over one table. Rows
of nearly equal popularity are kept as one group, so that sums over forty million rows are sums
over a few hundred groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from irgraph.ir.points.point_values import (
    Number,
    PointValues,
    ScalarOnlyError,
    as_array,
    point_count,
)

Floats: TypeAlias = NDArray[np.float64]

SINGLE, STEP = 128, 0.02
"""Most popular rows that are groups of their own, and how much longer each later group is than
all before it, as a share: within a group probabilities of a Zipf law differ by about this."""


class Uniform(Struct, frozen=True):
    """Every row is looked up equally often."""

    def __str__(self) -> str:
        """Return what the option ``--indices`` takes."""
        return "uniform"


class Zipf(Struct, frozen=True):
    """Zipf-Mandelbrot: the row of rank r = 1, 2, … with weight ``(r + shift) ** -exponent``."""

    exponent: float
    shift: float = 0.0

    def __str__(self) -> str:
        """Return what the option ``--indices`` takes."""
        return f"zipf:{self.exponent:g}" + (f",{self.shift:g}" if self.shift else "")


class HeavyHitters(Struct, frozen=True):
    """A few rows with chances of their own, the other ranks by a Zipf law (FBGEMM's trace model).

    As in FBGEMM's generator of indices (fbgemm_gpu/src/tbe/eeg): the row of rank r after the
    ``chances`` has the weight of rank r in the law, and all of them share what chance is left.
    """

    chances: tuple[float, ...]
    law: Zipf

    def __str__(self) -> str:
        """Return what the option ``--indices`` takes."""
        return "+".join((str(self.law), *(f"{chance:g}" for chance in self.chances)))


class Histogram(Struct, frozen=True):
    """Groups of rows: how many ``rows`` and ``lookups`` each has, as counts or as shares.

    Laid over a table of another size, the shares are kept.
    """

    rows: tuple[float, ...]
    lookups: tuple[float, ...]

    def __str__(self) -> str:
        """Say how many groups there are."""
        return f"histogram of {len(self.rows)} groups"


Distribution: TypeAlias = Uniform | Zipf | HeavyHitters | Histogram

UNIFORM = Uniform()


class RowGroups(Struct, frozen=True, eq=False):
    """A table's rows in groups: how many, and the chance that one lookup takes a given one.

    ``counts * chances`` sums to one. Rows that are never looked up have the chance zero.
    """

    counts: Floats
    chances: Floats

    def distinct(self, lookups: Floats | float) -> Floats:
        """Return the expected number of different rows among independent lookups, one a value."""
        return np.asarray((self._seen(lookups) * self.counts).sum(-1))

    def seen(self, window: Floats | float) -> tuple[Floats, Floats]:
        """Return the different rows expected among lookups, and the chance to be one of those.

        The chance is that of the row of a further lookup.
        """
        seen = self._seen(window)
        rows, chance = (seen * self.counts).sum(-1), (seen * (self.counts * self.chances)).sum(-1)
        return np.asarray(rows), np.asarray(chance)

    def _seen(self, lookups: Floats | float) -> Floats:
        """Return, by group in the last axis, the chance that a row is among so many lookups."""
        few = np.asarray(lookups, np.float64)[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            missed = np.where(few > 0, few * np.log1p(-np.minimum(self.chances, 1.0)), 0.0)
        return -np.expm1(missed)


def even_rows(rows: Floats) -> RowGroups:
    """Return tables of so many rows, all looked up equally often; ``rows`` at many points.

    ``distinct`` and ``repeated`` then take ``float64[points, n]``.
    """
    counts = np.asarray(rows, np.float64)[:, None, None]
    return RowGroups(counts, 1.0 / counts)


def distinct_rows(distribution: Distribution, rows: Number, lookups: Number) -> float:
    """Return the expected number of different rows of a table among lookups, at every point."""
    points = point_count(rows, lookups)
    if not points:
        return float(rows_of(distribution, rows).distinct(lookups))
    if not isinstance(distribution, Uniform):
        raise ScalarOnlyError("lookups that are not uniform")
    asked = as_array(lookups, points)[:, None]
    return PointValues(even_rows(as_array(rows, points)).distinct(asked)[:, 0])  # type: ignore[return-value]


def greatest_chance(distribution: Distribution, rows: Number) -> float:
    """Return the chance that a lookup takes the most popular row of a table, at every point."""
    if isinstance(distribution, Uniform):
        return 1.0 / rows  # type: ignore[no-any-return]
    if point_count(rows):
        raise ScalarOnlyError("lookups that are not uniform")
    return float(rows_of(distribution, rows).chances.max())


@cache
def rows_of(distribution: Distribution, rows: int) -> RowGroups:
    """Return a distribution over a table of so many rows, at least one."""
    if isinstance(distribution, Zipf):
        return _zipf(distribution, rows)
    if isinstance(distribution, HeavyHitters):
        return _hitters(distribution, rows)
    if isinstance(distribution, Histogram):
        return _histogram(distribution, rows)
    return RowGroups(np.array([float(rows)]), np.array([1.0 / rows]))


def _zipf(law: Zipf, rows: int) -> RowGroups:
    edges = _ranks(rows)
    counts = np.diff(edges)
    weights = np.array([_weight(law, low, high) for low, high in pairwise(edges)])
    return RowGroups(counts, weights / weights.sum() / counts)


def _hitters(law: HeavyHitters, rows: int) -> RowGroups:
    """Return single rows with their chances, and what follows; fewer rows share all chance."""
    single = np.array(law.chances[:rows], np.float64)
    others = rows - len(single)
    if not others:
        return RowGroups(np.ones(rows), single / single.sum())
    shifted = Zipf(law.law.exponent, law.law.shift + len(single))
    rest = _zipf(shifted, others)
    counts = np.concatenate([np.ones(len(single)), rest.counts])
    return RowGroups(counts, np.concatenate([single, (1.0 - single.sum()) * rest.chances]))


def _ranks(rows: int) -> Floats:
    """Return the ranks at which groups begin, and the end: singles first, then ever longer."""
    edges = list(range(min(SINGLE, rows) + 1))
    while edges[-1] < rows:
        edges.append(min(edges[-1] + max(int(edges[-1] * STEP), 1), rows))
    return np.array(edges, np.float64)


def _weight(law: Zipf, low: float, high: float) -> float:
    """Return the summed weight of ranks ``low + 1 … high``: the middle rank's by Simpson's rule.

    The sum over unit steps is the integral from ``low + 1/2`` to ``high + 1/2``.
    """
    first, last = (edge + 0.5 + law.shift for edge in (low, high))
    if high - low == 1:
        return float((high + law.shift) ** -law.exponent)
    ends = first**-law.exponent + last**-law.exponent
    return float((high - low) * (ends + 4 * ((first + last) / 2) ** -law.exponent) / 6)


def _histogram(parts: Histogram, rows: int) -> RowGroups:
    """Lay groups over a table, the most popular first; one thinner than a row shares it."""
    given, looked = np.array(parts.rows, np.float64), np.array(parts.lookups, np.float64)
    order = np.argsort(-looked / np.maximum(given, np.finfo(float).tiny))
    ends = np.cumsum(given[order]) * (rows / given.sum())
    edges = np.union1d([0.0, float(rows)], np.ceil(np.round(ends, 6)).clip(1, rows))
    reached = np.interp(edges, np.append(0.0, ends), np.append(0.0, np.cumsum(looked[order])))
    counts = np.diff(edges)
    return RowGroups(counts, np.diff(reached) / reached[-1] / counts)


def histogram(counts: Sequence[float]) -> Histogram:
    """Return the distribution of lookups counted for each row; equal counts become one group."""
    values, rows = np.unique(np.asarray(counts, np.float64), return_counts=True)
    return Histogram(tuple(rows.astype(float).tolist()), tuple((values * rows).tolist()))
