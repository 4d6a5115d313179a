"""Contents of a cache of pooled bags, and the bags and rows that are not read from a slower tier.

A bag hits the cache if the same list of indices, in the same order, was pooled before and is still
cached. How often a list recurs depends on the queries. With ``drawn_bags`` the rows of a bag are
drawn independently: the chance of a list is the product of its rows' chances, and few long lists
ever recur. With ``listed_bags`` there is a fixed number of lists with their own popularity, as if
the same users return. The cached lists follow as for rows: by Che's approximation, or as the most
popular ones (``irgraph.tiers.hits``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from irgraph.ir.cost import Popularity
from irgraph.tiers.hits import Floats, Lookups, Policy, cache_of

LOG_CHANCE_STEP, MAX_LOG_CHANCE = 0.02, 64.0
"""Resolution of the logarithms of chances, and their limit, nats; lists rarer than
``exp(-MAX_LOG_CHANCE)`` never recur."""

MIN_BAG_SHARE = 1e-15
"""Minimum share of all bags; smaller shares are rounding errors."""

_LISTS = re.compile(r"(\d{1,15}) (uniform|zipf:\d{1,9}(?:\.\d{1,15})?(?:,\d{1,9}(?:\.\d{1,15})?)?)")


class Bags(Struct, frozen=True):
    """Lists of indices in groups.

    Attributes:
        popularity: counts of lists and their chances; the remainder to 1 is never cached.
        lengths: number of rows of a list, by group.
        mean: mean length of all bags, including bags that are never cached.
    """

    popularity: Popularity
    lengths: tuple[float, ...]
    mean: float

    def hit_shares(self, slots: int, policy: Policy = "lru") -> tuple[float, float]:
        """Return the shares of bags and of their rows that a cache of ``slots`` bags answers."""
        if slots <= 0 or not self.lengths or not self.mean:
            return 0.0, 0.0
        cache = cache_of([Lookups(self.popularity, 1.0)], float(slots), policy)
        popularity = self.popularity
        shares = (
            np.asarray(popularity.counts)
            * np.asarray(popularity.chances)
            * cache.hit_probabilities[0]
        )
        rows = float((shares * np.asarray(self.lengths)).sum()) / self.mean
        return min(float(shares.sum()), 1.0), min(rows, 1.0)


def read_lists(text: str) -> tuple[int, str] | None:
    """Return the number and the law of lists such as ``"100000 zipf:0.9"``, else ``None``.

    ``--indices`` accepts the same laws: ``uniform``, ``zipf:S`` and ``zipf:S,Q``.
    """
    match = _LISTS.fullmatch(text)
    return (int(match[1]), match[2]) if match and int(match[1]) else None


def listed_bags(lists: Popularity, lengths: Mapping[int, float], longest: int) -> Bags:
    """Return bags of lists with their own popularity, independent of their length.

    Args:
        lists: the number of lists and the chance of each.
        lengths: share of the bags by length.
        longest: rows of the longest bag that is cached.
    """
    mean = sum(length * share for length, share in lengths.items())
    short_lengths = {n: share for n, share in lengths.items() if 0 < n <= longest}
    counts = tuple(n * share for share in short_lengths.values() for n in lists.counts)
    group_lengths = tuple(float(length) for length in short_lengths for _ in lists.counts)
    return Bags(Popularity(counts, lists.chances * len(short_lengths)), group_lengths, mean)


def drawn_bags(rows: Popularity, lengths: Mapping[int, float], longest: int) -> Bags:
    """Return bags whose rows are drawn independently, by the popularity of a table's rows.

    The logarithms of the rows' chances add up: their distribution is convolved with itself.
    """
    mean = sum(length * share for length, share in lengths.items())
    row_mass, grid_chances = (
        _mass_by_log_chance(rows),
        np.exp(-LOG_CHANCE_STEP * np.arange(int(MAX_LOG_CHANCE / LOG_CHANCE_STEP))),
    )
    folded: dict[int, Floats] = {1: row_mass}
    counts: list[Floats] = []
    chances: list[Floats] = []
    group_lengths: list[Floats] = []
    for length, share in lengths.items():
        if not 0 < length <= longest:
            continue
        mass = _mass_of_sum(folded, length)
        is_significant = mass > MIN_BAG_SHARE
        counts.append(mass[is_significant] / grid_chances[is_significant])
        chances.append(share * grid_chances[is_significant])
        group_lengths.append(np.full(int(is_significant.sum()), float(length)))
    if not counts:
        return Bags(Popularity((), ()), (), mean)
    popularity = Popularity(tuple(np.concatenate(counts)), tuple(np.concatenate(chances)))
    return Bags(popularity, tuple(np.concatenate(group_lengths)), mean)


def _mass_by_log_chance(rows: Popularity) -> Floats:
    """Return the share of lookups by the logarithm of their row's chance.

    Each share is split between the two nearest grid points.
    """
    counts, chances = np.asarray(rows.counts, float), np.asarray(rows.chances, float)
    counts, chances = counts[chances > 0], chances[chances > 0]
    mass, positions = counts * chances, -np.log(np.minimum(chances, 1.0)) / LOG_CHANCE_STEP
    size = int(MAX_LOG_CHANCE / LOG_CHANCE_STEP)
    low = np.floor(positions).astype(int)
    histogram = np.zeros(size + 2)
    for indices, share in ((low, 1.0 - (positions - low)), (low + 1, positions - low)):
        np.add.at(histogram, np.minimum(indices, size + 1), mass * share)
    return histogram[:size]


def _mass_of_sum(mass_by_length: dict[int, Floats], length: int) -> Floats:
    """Return the distribution of the sum of ``length`` draws, truncated at the end of the grid."""
    if length not in mass_by_length:
        half = length // 2
        mass_by_length[length] = _convolve(
            _mass_of_sum(mass_by_length, half), _mass_of_sum(mass_by_length, length - half)
        )
    return mass_by_length[length]


def _convolve(first: Floats, second: Floats) -> Floats:
    size = len(first)
    spectrum = np.fft.rfft(first, 2 * size) * np.fft.rfft(second, 2 * size)
    return np.maximum(np.fft.irfft(spectrum, 2 * size)[:size], 0.0)
