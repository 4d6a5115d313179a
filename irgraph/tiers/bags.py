"""What a cache of pooled bags holds, and which bags and rows it therefore keeps off a slower tier.

A bag is found if the same list of indices, in the same order, was pooled before and is still held.
How often a list comes again depends on who asks: with ``drawn_bags`` the rows of a bag are drawn
one by one (the chance of a list is the product of its rows' chances, and few lists of more than
some rows ever come again), with ``listed_bags`` there are so many different lists with a
popularity of their own, as where the same users return. Which lists are held follows as for rows:
by Che's approximation, or the most popular ones (``irgraph.tiers.hits``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from irgraph.ir.cost import Popularity
from irgraph.tiers.hits import Floats, Lookups, Policy, cache_of

STEP, MOST = 0.02, 64.0
"""Logarithms of chances are kept to this step, nats; lists rarer than ``exp(-MOST)`` never come
again."""

LEAST = 1e-15
"""A share of all bags below this is rounding."""

_LISTS = re.compile(r"(\d{1,15}) (uniform|zipf:\d{1,9}(?:\.\d{1,15})?(?:,\d{1,9}(?:\.\d{1,15})?)?)")


class Bags(Struct, frozen=True):
    """Lists of indices in groups.

    Attributes:
        popularity: counts of lists and their chances; what is missing to 1 is never held.
        lengths: of the lists of each group, rows.
        mean: length of all bags, those that are never held included.
    """

    popularity: Popularity
    lengths: tuple[float, ...]
    mean: float

    def found(self, slots: int, policy: Policy = "lru") -> tuple[float, float]:
        """Return the share of bags that a cache of so many bags answers, and that of their rows."""
        if slots <= 0 or not self.lengths or not self.mean:
            return 0.0, 0.0
        cache = cache_of([Lookups(self.popularity, 1.0)], float(slots), policy)
        known = self.popularity
        shares = np.asarray(known.counts) * np.asarray(known.chances) * cache.held[0]
        rows = float((shares * np.asarray(self.lengths)).sum()) / self.mean
        return min(float(shares.sum()), 1.0), min(rows, 1.0)


def read_lists(text: str) -> tuple[int, str] | None:
    """Return how many lists ``"100000 zipf:0.9"`` tells of, and their law; ``None`` if it cannot.

    The law is one that ``--indices`` takes: ``uniform``, ``zipf:S`` or ``zipf:S,Q``.
    """
    match = _LISTS.fullmatch(text)
    return (int(match[1]), match[2]) if match and int(match[1]) else None


def listed_bags(lists: Popularity, lengths: Mapping[int, float], longest: int) -> Bags:
    """Return bags of lists that have a popularity of their own, whatever their length.

    Args:
        lists: how many there are, and how often each comes.
        lengths: share of the bags that have each length.
        longest: rows of the longest bag that is held.
    """
    mean = sum(length * share for length, share in lengths.items())
    kept = {n: share for n, share in lengths.items() if 0 < n <= longest}
    counts = tuple(n * share for share in kept.values() for n in lists.counts)
    each = tuple(float(length) for length in kept for _ in lists.counts)
    return Bags(Popularity(counts, lists.chances * len(kept)), each, mean)


def drawn_bags(rows: Popularity, lengths: Mapping[int, float], longest: int) -> Bags:
    """Return bags whose rows are drawn one by one, by the popularity of a table's rows.

    The logarithms of the rows' chances add up: their distribution is folded with itself.
    """
    mean = sum(length * share for length, share in lengths.items())
    single, places = _grid(rows), np.exp(-STEP * np.arange(int(MOST / STEP)))
    folded: dict[int, Floats] = {1: single}
    counts: list[Floats] = []
    chances: list[Floats] = []
    each: list[Floats] = []
    for length, share in lengths.items():
        if not 0 < length <= longest:
            continue
        mass = _fold(folded, length)
        there = mass > LEAST
        counts.append(mass[there] / places[there])
        chances.append(share * places[there])
        each.append(np.full(int(there.sum()), float(length)))
    if not counts:
        return Bags(Popularity((), ()), (), mean)
    named = Popularity(tuple(np.concatenate(counts)), tuple(np.concatenate(chances)))
    return Bags(named, tuple(np.concatenate(each)), mean)


def _grid(rows: Popularity) -> Floats:
    """Return the share of lookups by the logarithm of their row's chance, split to two places."""
    counts, chances = np.asarray(rows.counts, float), np.asarray(rows.chances, float)
    counts, chances = counts[chances > 0], chances[chances > 0]
    mass, at = counts * chances, -np.log(np.minimum(chances, 1.0)) / STEP
    size = int(MOST / STEP)
    low = np.floor(at).astype(int)
    made = np.zeros(size + 2)
    for place, share in ((low, 1.0 - (at - low)), (low + 1, at - low)):
        np.add.at(made, np.minimum(place, size + 1), mass * share)
    return made[:size]


def _fold(known: dict[int, Floats], length: int) -> Floats:
    """Return the distribution of the sum of so many draws; what lies beyond is left out."""
    if length not in known:
        half = length // 2
        known[length] = _sum(_fold(known, half), _fold(known, length - half))
    return known[length]


def _sum(one: Floats, other: Floats) -> Floats:
    size = len(one)
    both = np.fft.rfft(one, 2 * size) * np.fft.rfft(other, 2 * size)
    return np.maximum(np.fft.irfft(both, 2 * size)[:size], 0.0)
