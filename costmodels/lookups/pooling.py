"""How many rows the bags of a lookup have: distributions of lengths, and the longest of many.

How many indices there are in all follows from the shapes of an op. A law says how the bags share
them: it is stretched so that its mean is that of the bags.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from irgraph.ir.points.point_values import Number, ScalarOnlyError, maximum, minimum, point_count

Floats: TypeAlias = NDArray[np.float64]

PARTS = 64
"""Equal parts that bags of uneven lengths are taken as."""

STEPS = 512
"""Points at which the quantiles of the longest bag are averaged."""


class EqualLengths(Struct, frozen=True):
    """All bags are equally long."""

    def __str__(self) -> str:
        """Return what the option ``--indices`` takes."""
        return "equal"


class Poisson(Struct, frozen=True):
    """Each index falls into any of the bags."""

    def __str__(self) -> str:
        """Return what the option ``--indices`` takes."""
        return "poisson"


class Normal(Struct, frozen=True):
    """A normal distribution without what is below zero, as FBGEMM draws lengths of bags."""

    mean: float
    deviation: float

    def __str__(self) -> str:
        """Return what the option ``--indices`` takes."""
        return f"normal:{self.mean:g},{self.deviation:g}"


class LogNormal(Struct, frozen=True):
    """The logarithm is normally distributed, with this deviation."""

    deviation: float

    def __str__(self) -> str:
        """Return what the option ``--indices`` takes."""
        return f"lognormal:{self.deviation:g}"


class Lengths(Struct, frozen=True):
    """Measured lengths, in order, and how many ``bags`` had each, as counts or as shares."""

    lengths: tuple[float, ...]
    bags: tuple[float, ...]

    def __str__(self) -> str:
        """Say how many lengths there are."""
        return f"histogram of {len(self.lengths)} lengths"


Scaled: TypeAlias = Normal | LogNormal | Lengths
Uneven: TypeAlias = Poisson | Scaled
Pooling: TypeAlias = EqualLengths | Uneven

EQUAL = EqualLengths()


def longest(law: Pooling, bags: Number, lookups: Number) -> float:
    """Return the expected number of indices of the longest bag, at every point.

    Not less than the mean, and not more than all ``lookups``.
    """
    mean: float = lookups / maximum(bags, 1)
    if isinstance(law, EqualLengths):
        return mean
    if point_count(bags, lookups):
        raise ScalarOnlyError("bags that are not equally long")
    found = maximum(_longest(law, int(bags), float(mean)), mean)
    return minimum(found, float(lookups))


@cache
def _longest(law: Uneven, bags: int, mean: float) -> float:
    if bags < 1 or mean <= 0:
        return 0.0
    if isinstance(law, Poisson):
        return _longest_poisson(bags, mean)
    # The greatest of n independent draws is the quantile of the greatest of n even ones.
    places = (np.arange(STEPS) + 0.5) / STEPS
    return float(quantiles(law, places ** (1.0 / bags)).mean()) * mean


def length_shares(law: Pooling, mean: float) -> dict[int, float]:
    """Return the share of the bags that have each length, in rows; of a few lengths of many."""
    if isinstance(law, EqualLengths):
        low = int(mean)
        both = ((low, 1.0 - mean + low), (low + 1, mean - low))
        return {length: share for length, share in both if share > 0}
    places = (np.arange(PARTS) + 0.5) / PARTS
    if isinstance(law, Poisson):
        counts = np.arange(int(mean + 12 * math.sqrt(mean) + 40))
        logs = counts * math.log(max(mean, 1e-300)) - mean
        below = np.cumsum(np.exp(logs - np.array([math.lgamma(n + 1.0) for n in counts])))
        lengths = np.searchsorted(below, places).astype(float)
    else:
        lengths = np.round(quantiles(law, places) * mean)
    every, bags = np.unique(lengths, return_counts=True)
    return {int(n): float(count) / PARTS for n, count in zip(every, bags, strict=True)}


def quantiles(law: Scaled, shares: Floats) -> Floats:
    """Return the lengths below which shares of the bags stay, for bags of mean one."""
    if isinstance(law, Lengths):
        below = np.cumsum(law.bags) / np.sum(law.bags)
        at = np.minimum(np.searchsorted(below, shares), len(below) - 1)
        mean = np.dot(law.lengths, law.bags) / np.sum(law.bags)
        return np.asarray(np.array(law.lengths)[at] / mean)
    standard = NormalDist()
    even = np.array([standard.inv_cdf(min(share, 1.0 - 1e-16)) for share in shares])
    if isinstance(law, LogNormal):
        return np.asarray(np.exp(law.deviation * even - law.deviation**2 / 2))
    place = law.mean / law.deviation
    mean = law.mean * standard.cdf(place) + law.deviation * standard.pdf(place)
    return np.asarray(np.maximum(law.mean + law.deviation * even, 0.0) / mean)


def _longest_poisson(bags: int, mean: float) -> float:
    """Return the sum over n of the chance that some bag has more than n indices."""
    ends = int(mean + 12 * math.sqrt(mean) + 40)
    counts = np.arange(ends + 1)
    logs = counts * math.log(mean) - mean - np.array([math.lgamma(n + 1.0) for n in counts])
    below = np.minimum(np.cumsum(np.exp(logs)), 1.0)
    return float((1.0 - below**bags).sum())
