"""Draws the indices and bags of a table from laws, as FBGEMM's benchmarks do from traces."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodels.lookups.pooling import EqualLengths, Poisson, Pooling, quantiles
from costmodels.lookups.popularity import Distribution, rows_of

Whole: TypeAlias = NDArray[np.int64]

CLUSTERED, NEAR = 0.6, 5.0
"""Share of the lookups of a row that lie near an earlier one, and how near: ``1 / (NEAR n)`` of the
batch on average for a row with n lookups (kTagClusterProbability, kTagClusterCoeff in FBGEMM,
fbgemm_gpu/src/tbe/eeg/indices_generator.cpp)."""


def draw_rows(
    law: Distribution, rows: int, count: int, source: np.random.Generator, clustered: float = 0.0
) -> Whole:
    """Return ``count`` rows of a table as they are looked up, the most popular ones first in it.

    Args:
        law: how often rows are looked up.
        rows: of the table.
        count: how many lookups.
        source: of what is random.
        clustered: the share of a row's lookups that are near another of them in time; FBGEMM's
            generator takes ``CLUSTERED``.
    """
    groups = rows_of(law, rows)
    ends = np.cumsum(groups.counts * groups.chances)
    drawn = np.searchsorted(ends, source.random(count) * ends[-1])
    drawn = np.minimum(drawn, len(ends) - 1)
    starts = np.cumsum(groups.counts) - groups.counts
    found = starts[drawn] + np.floor(source.random(count) * groups.counts[drawn])
    looked: Whole = np.minimum(found.astype(np.int64), rows - 1)
    return looked[np.argsort(_tags(looked, source, clustered))] if clustered else looked


def _tags(looked: Whole, source: np.random.Generator, clustered: float) -> NDArray[np.float64]:
    """Return the time of each lookup: any, or soon after an earlier one of the same row."""
    count = len(looked)
    tags, follows, picked = source.random(count), source.random(count), source.random(count)
    later = source.exponential(size=count)
    _, row, often = np.unique(looked, return_inverse=True, return_counts=True)
    before: dict[int, list[int]] = {}
    for place in range(count):
        earlier = before.setdefault(int(row[place]), [])
        if earlier and follows[place] < clustered:
            near = earlier[int(picked[place] * len(earlier))]
            tags[place] = tags[near] + later[place] / (NEAR * often[row[place]])
        earlier.append(place)
    return tags


def draw_lengths(law: Pooling, bags: int, lookups: int, source: np.random.Generator) -> Whole:
    """Return the length of each of ``bags``; they sum to ``lookups``.

    What a law draws is stretched to that sum; what is lost in whole numbers goes to the bags that
    lost most of it.
    """
    if isinstance(law, Poisson):
        placed: Whole = np.bincount(source.integers(bags, size=lookups), minlength=bags)
        return placed
    shares = np.ones(bags) if isinstance(law, EqualLengths) else quantiles(law, source.random(bags))
    if not shares.sum():
        shares = np.ones(bags)
    exact = shares * (lookups / shares.sum())
    found: Whole = np.floor(exact).astype(np.int64)
    lost = np.argsort(found - exact, kind="stable")[: lookups - int(found.sum())]
    found[lost] += 1
    return found


def offsets_of(lengths: Whole) -> Whole:
    """Return where each bag begins, as ``embedding_bag`` takes it."""
    starts: Whole = np.cumsum(lengths) - lengths
    return starts
