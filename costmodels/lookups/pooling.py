"""Lengths of the bags of a lookup: their distributions, and the expected longest of many.

The total number of indices follows from the shapes of an op. A law distributes them over the bags;
it is scaled to the mean length of the bags.
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
"""Number of equal shares of the bags that represent a distribution of lengths."""

STEPS = 512
"""Number of quantiles that are averaged for the longest bag."""


class EqualLengths(Struct, frozen=True):
    """Bags of equal lengths."""

    def __str__(self) -> str:
        """Return the law in the syntax of the option ``--indices``."""
        return "equal"


class Poisson(Struct, frozen=True):
    """Poisson distribution: each index is in any of the bags with equal probability."""

    def __str__(self) -> str:
        """Return the law in the syntax of the option ``--indices``."""
        return "poisson"


class Normal(Struct, frozen=True):
    """Normal distribution with negative draws set to 0, as FBGEMM draws lengths of bags."""

    mean: float
    deviation: float

    def __str__(self) -> str:
        """Return the law in the syntax of the option ``--indices``."""
        return f"normal:{self.mean:g},{self.deviation:g}"


class LogNormal(Struct, frozen=True):
    """Log-normal distribution with this deviation of the logarithm."""

    deviation: float

    def __str__(self) -> str:
        """Return the law in the syntax of the option ``--indices``."""
        return f"lognormal:{self.deviation:g}"


class Lengths(Struct, frozen=True):
    """Measured lengths, in order, and the number or the share of ``bags`` with each length."""

    lengths: tuple[float, ...]
    bags: tuple[float, ...]

    def __str__(self) -> str:
        """Return the number of lengths, in words."""
        return f"histogram of {len(self.lengths)} lengths"


Scaled: TypeAlias = Normal | LogNormal | Lengths
Uneven: TypeAlias = Poisson | Scaled
Pooling: TypeAlias = EqualLengths | Uneven

EQUAL = EqualLengths()


def longest(law: Pooling, bags: Number, lookups: Number) -> float:
    """Return the expected number of indices of the longest bag, at every point.

    It is between the mean length and ``lookups``.
    """
    mean: float = lookups / maximum(bags, 1)
    if isinstance(law, EqualLengths):
        return mean
    if point_count(bags, lookups):
        raise ScalarOnlyError("bags that are not equally long")
    expected = maximum(_longest(law, int(bags), float(mean)), mean)
    return minimum(expected, float(lookups))


@cache
def _longest(law: Uneven, bags: int, mean: float) -> float:
    if bags < 1 or mean <= 0:
        return 0.0
    if isinstance(law, Poisson):
        return _longest_poisson(bags, mean)
    # The maximum of n independent draws is the quantile at the maximum of n uniform draws.
    levels = (np.arange(STEPS) + 0.5) / STEPS
    return float(quantiles(law, levels ** (1.0 / bags)).mean()) * mean


def length_shares(law: Pooling, mean: float) -> dict[int, float]:
    """Return the share of the bags by length, in rows; a law is represented by a few lengths."""
    if isinstance(law, EqualLengths):
        low = int(mean)
        length_shares_of_mean = ((low, 1.0 - mean + low), (low + 1, mean - low))
        return {length: share for length, share in length_shares_of_mean if share > 0}
    levels = (np.arange(PARTS) + 0.5) / PARTS
    if isinstance(law, Poisson):
        counts = np.arange(int(mean + 12 * math.sqrt(mean) + 40))
        logs = counts * math.log(max(mean, 1e-300)) - mean
        cumulative = np.cumsum(np.exp(logs - np.array([math.lgamma(n + 1.0) for n in counts])))
        lengths = np.searchsorted(cumulative, levels).astype(float)
    else:
        lengths = np.round(quantiles(law, levels) * mean)
    distinct_lengths, bags = np.unique(lengths, return_counts=True)
    return {int(n): float(count) / PARTS for n, count in zip(distinct_lengths, bags, strict=True)}


def quantiles(law: Scaled, shares: Floats) -> Floats:
    """Return the quantiles of the lengths at ``shares``, for bags of mean length 1."""
    if isinstance(law, Lengths):
        cumulative = np.cumsum(law.bags) / np.sum(law.bags)
        positions = np.minimum(np.searchsorted(cumulative, shares), len(cumulative) - 1)
        mean = np.dot(law.lengths, law.bags) / np.sum(law.bags)
        return np.asarray(np.array(law.lengths)[positions] / mean)
    standard = NormalDist()
    normal_values = np.array([standard.inv_cdf(min(share, 1.0 - 1e-16)) for share in shares])
    if isinstance(law, LogNormal):
        return np.asarray(np.exp(law.deviation * normal_values - law.deviation**2 / 2))
    mean_in_deviations = law.mean / law.deviation
    mean = law.mean * standard.cdf(mean_in_deviations) + law.deviation * standard.pdf(
        mean_in_deviations
    )
    return np.asarray(np.maximum(law.mean + law.deviation * normal_values, 0.0) / mean)


def _longest_poisson(bags: int, mean: float) -> float:
    """Return the sum over n of the probability that some bag has more than n indices."""
    ends = int(mean + 12 * math.sqrt(mean) + 40)
    counts = np.arange(ends + 1)
    logs = counts * math.log(mean) - mean - np.array([math.lgamma(n + 1.0) for n in counts])
    cumulative = np.minimum(np.cumsum(np.exp(logs)), 1.0)
    return float((1.0 - cumulative**bags).sum())
