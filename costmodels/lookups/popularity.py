"""Popularity of the rows of an embedding table.

A distribution applies to tables of any size; ``rows_of`` evaluates it for one table. Rows of
nearly equal popularity are one group, so that sums over forty million rows are sums over a few
hundred groups.
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
"""Number of most popular rows that are each a separate group, and the length of each later group
relative to all rows before it: within a group probabilities of a Zipf law differ by about this."""


class Uniform(Struct, frozen=True):
    """Uniform distribution: every row is looked up equally often."""

    def __str__(self) -> str:
        """Return the distribution in the syntax of the option ``--indices``."""
        return "uniform"


class Zipf(Struct, frozen=True):
    """Zipf-Mandelbrot: the row of rank r = 1, 2, … with weight ``(r + shift) ** -exponent``."""

    exponent: float
    shift: float = 0.0

    def __str__(self) -> str:
        """Return the distribution in the syntax of the option ``--indices``."""
        return f"zipf:{self.exponent:g}" + (f",{self.shift:g}" if self.shift else "")


class HeavyHitters(Struct, frozen=True):
    """A few rows with given ``chances``, the other ranks by a Zipf law (FBGEMM's trace model).

    As in FBGEMM's generator of indices (fbgemm_gpu/src/tbe/eeg): the row of rank r after the
    ``chances`` has the weight of rank r in the law, and these rows share the remaining chance.
    """

    chances: tuple[float, ...]
    law: Zipf

    def __str__(self) -> str:
        """Return the distribution in the syntax of the option ``--indices``."""
        return "+".join((str(self.law), *(f"{chance:g}" for chance in self.chances)))


class Histogram(Struct, frozen=True):
    """Groups of rows, with the ``rows`` and ``lookups`` of each as counts or as shares.

    Over a table of another size the shares remain the same.
    """

    rows: tuple[float, ...]
    lookups: tuple[float, ...]

    def __str__(self) -> str:
        """Return the number of groups, in words."""
        return f"histogram of {len(self.rows)} groups"


Distribution: TypeAlias = Uniform | Zipf | HeavyHitters | Histogram

UNIFORM = Uniform()


class RowGroups(Struct, frozen=True, eq=False):
    """A table's rows in groups: the rows of each, and the chance of each row in one lookup.

    ``counts * chances`` sums to one. Rows that are never looked up have the chance zero.
    """

    counts: Floats
    chances: Floats

    def distinct_count(self, lookups: Floats | float) -> Floats:
        """Return the expected number of different rows among each number of lookups."""
        return np.asarray((self._appearance(lookups) * self.counts).sum(-1))

    def coverage(self, window: Floats | float) -> tuple[Floats, Floats]:
        """Return the expected different rows among lookups, and the chance of a repetition.

        A repetition is a further lookup of one of these rows.
        """
        appearance = self._appearance(window)
        rows, chance = (
            (appearance * self.counts).sum(-1),
            (appearance * (self.counts * self.chances)).sum(-1),
        )
        return np.asarray(rows), np.asarray(chance)

    def _appearance(self, lookups: Floats | float) -> Floats:
        """Return the chance that a row of each group (last axis) is among ``lookups`` lookups."""
        lookup_counts = np.asarray(lookups, np.float64)[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            log_miss_chance = np.where(
                lookup_counts > 0, lookup_counts * np.log1p(-np.minimum(self.chances, 1.0)), 0.0
            )
        return -np.expm1(log_miss_chance)


def even_rows(rows: Floats) -> RowGroups:
    """Return tables of ``rows`` rows, ``float64[points]``, that are all looked up equally often.

    Methods of the result accept lookups as ``float64[points, n]``.
    """
    counts = np.asarray(rows, np.float64)[:, None, None]
    return RowGroups(counts, 1.0 / counts)


def distinct_rows(distribution: Distribution, rows: Number, lookups: Number) -> float:
    """Return the expected number of different rows of a table among lookups, at every point."""
    points = point_count(rows, lookups)
    if not points:
        return float(rows_of(distribution, rows).distinct_count(lookups))
    if not isinstance(distribution, Uniform):
        raise ScalarOnlyError("lookups that are not uniform")
    lookup_counts = as_array(lookups, points)[:, None]
    return PointValues(even_rows(as_array(rows, points)).distinct_count(lookup_counts)[:, 0])  # type: ignore[return-value]


def max_chance(distribution: Distribution, rows: Number) -> float:
    """Return the chance of the most popular row of a table in a lookup, at every point."""
    if isinstance(distribution, Uniform):
        return 1.0 / rows  # type: ignore[no-any-return]
    if point_count(rows):
        raise ScalarOnlyError("lookups that are not uniform")
    return float(rows_of(distribution, rows).chances.max())


@cache
def rows_of(distribution: Distribution, rows: int) -> RowGroups:
    """Return a distribution over a table of ``rows`` rows, at least one."""
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
    """Return the single rows with their chances, then the law's rows, normalised to sum 1."""
    single = np.array(law.chances[:rows], np.float64)
    others = rows - len(single)
    if not others:
        return RowGroups(np.ones(rows), single / single.sum())
    shifted = Zipf(law.law.exponent, law.law.shift + len(single))
    rest = _zipf(shifted, others)
    counts = np.concatenate([np.ones(len(single)), rest.counts])
    return RowGroups(counts, np.concatenate([single, (1.0 - single.sum()) * rest.chances]))


def _ranks(rows: int) -> Floats:
    """Return the boundaries of the groups of ranks: single ranks first, then growing groups."""
    edges = list(range(min(SINGLE, rows) + 1))
    while edges[-1] < rows:
        edges.append(min(edges[-1] + max(int(edges[-1] * STEP), 1), rows))
    return np.array(edges, np.float64)


def _weight(law: Zipf, low: float, high: float) -> float:
    """Return the summed weight of ranks ``low + 1 … high``, by Simpson's rule.

    The sum over unit steps is approximated by the integral from ``low + 1/2`` to ``high + 1/2``.
    """
    first, last = (edge + 0.5 + law.shift for edge in (low, high))
    if high - low == 1:
        return float((high + law.shift) ** -law.exponent)
    ends = first**-law.exponent + last**-law.exponent
    return float((high - low) * (ends + 4 * ((first + last) / 2) ** -law.exponent) / 6)


def _histogram(groups: Histogram, rows: int) -> RowGroups:
    """Return groups scaled to a table, most popular first; groups below one row are merged."""
    row_counts, lookup_counts = (
        np.array(groups.rows, np.float64),
        np.array(groups.lookups, np.float64),
    )
    order = np.argsort(-lookup_counts / np.maximum(row_counts, np.finfo(float).tiny))
    ends = np.cumsum(row_counts[order]) * (rows / row_counts.sum())
    edges = np.union1d([0.0, float(rows)], np.ceil(np.round(ends, 6)).clip(1, rows))
    cumulative_lookups = np.interp(
        edges, np.append(0.0, ends), np.append(0.0, np.cumsum(lookup_counts[order]))
    )
    counts = np.diff(edges)
    return RowGroups(counts, np.diff(cumulative_lookups) / cumulative_lookups[-1] / counts)


def histogram(counts: Sequence[float]) -> Histogram:
    """Return the distribution of lookups counted for each row; equal counts become one group."""
    values, rows = np.unique(np.asarray(counts, np.float64), return_counts=True)
    return Histogram(tuple(rows.astype(float).tolist()), tuple((values * rows).tolist()))
