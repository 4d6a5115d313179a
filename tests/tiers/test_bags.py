"""Caches of pooled bags: hit rates beside caches simulated bag by bag, and laws that must hold."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.lookups.pooling import EQUAL, LogNormal, Normal, Poisson, Pooling, length_shares
from costmodels.lookups.popularity import Zipf, rows_of
from irgraph.ir.cost import Popularity
from irgraph.tiers.bags import drawn_bags, listed_bags, read_lists


def popularity(law: Zipf, rows: int) -> Popularity:
    known = rows_of(law, rows)
    return Popularity(tuple(known.counts), tuple(known.chances))


def weights(law: Zipf, rows: int) -> np.ndarray:
    found = (np.arange(1, rows + 1) + law.shift) ** -law.exponent
    return np.asarray(found / found.sum())


def simulated(bags: list[tuple[int, ...]], slots: int, longest: int) -> tuple[float, float]:
    """Return the share of bags, and of rows, that the least recently used bags answer."""
    held: OrderedDict[tuple[int, ...], None] = OrderedDict()
    start = len(bags) // 3
    found, rows = 0, 0
    for number, bag in enumerate(bags):
        if bag in held:
            held.move_to_end(bag)
            found += number >= start
            rows += len(bag) * (number >= start)
        elif 0 < len(bag) <= longest:
            held[bag] = None
            if len(held) > slots:
                held.popitem(last=False)
    late = bags[start:]
    return found / len(late), rows / sum(map(len, late))


def drawn(law: Zipf, rows: int, lengths: np.ndarray, seed: int) -> list[tuple[int, ...]]:
    keys = np.random.default_rng(seed).choice(rows, int(lengths.sum()), p=weights(law, rows))
    parts = np.split(keys, np.cumsum(lengths)[:-1])
    return [tuple(part.tolist()) for part in parts]


@pytest.mark.parametrize(
    ("rows", "length", "slots"), [(60, 2, 400), (60, 2, 1_500), (30, 3, 3_000), (500, 1, 60)]
)
def test_bags_of_rows_drawn_one_by_one_are_found_as_in_a_simulation(
    rows: int, length: int, slots: int
) -> None:
    law, count = Zipf(1.0, 1), 150_000
    expected = simulated(drawn(law, rows, np.full(count, length), 3), slots, length)
    bags = drawn_bags(popularity(law, rows), {length: 1.0}, length)
    assert bags.hit_shares(slots) == pytest.approx(expected, abs=0.005)
    assert bags.popularity.rows == pytest.approx(rows**length, rel=0.02)


def test_short_bags_are_found_more_often_and_longer_ones_are_not_kept() -> None:
    law, slots = Zipf(1.1), 2_000
    shares = {1: 0.4, 2: 0.3, 4: 0.2, 9: 0.1}
    source = np.random.default_rng(5)
    lengths = source.choice(list(shares), 150_000, p=list(shares.values()))
    bags = drawn_bags(popularity(law, 400), shares, 4)
    found = bags.hit_shares(slots)
    assert found == pytest.approx(simulated(drawn(law, 400, lengths, 6), slots, 4), abs=0.005)
    assert found[1] < found[0]


def test_lists_of_their_own_popularity_are_found_as_in_a_simulation() -> None:
    """Ten thousand different lists, a fifth of them too long to be kept."""
    law, lists, slots = Zipf(0.9), 10_000, 1_000
    source = np.random.default_rng(7)
    lengths = source.choice([3, 12], lists, p=[0.8, 0.2])
    which = source.choice(lists, 200_000, p=weights(law, lists))
    bags = [tuple([number] * lengths[number]) for number in which.tolist()]
    asked = np.bincount(lengths[which])
    shares = {n: asked[n] / len(bags) for n in (3, 12)}
    found = listed_bags(popularity(law, lists), shares, 8).hit_shares(slots)
    assert found == pytest.approx(simulated(bags, slots, 8), abs=0.01)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0, 1.5),
    st.integers(1, 3_000),
    st.integers(1, 40),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)
def test_more_slots_never_find_fewer_bags(
    exponent: float, rows: int, length: int, one: int, other: int
) -> None:
    bags = drawn_bags(popularity(Zipf(exponent), rows), {length: 1.0}, length)
    less, more = (bags.hit_shares(slots)[0] for slots in sorted((one, other)))
    assert 0 <= less <= more + 1e-9 <= 1 + 1e-9
    known = bags.popularity
    assert sum(n * p for n, p in zip(known.counts, known.chances, strict=True)) <= 1 + 1e-9


def test_long_bags_of_many_rows_never_come_again() -> None:
    bags = drawn_bags(popularity(Zipf(1.05), 1_000_000), {40: 1.0}, 80)
    assert bags.hit_shares(10**6)[0] < 1e-6
    assert drawn_bags(popularity(Zipf(1.0), 10), {0: 1.0}, 4).hit_shares(100) == (0.0, 0.0)


@pytest.mark.parametrize("law", [EQUAL, Poisson(), Normal(21, 35), LogNormal(1.0)])
@pytest.mark.parametrize("mean", [0.5, 4.0, 20.5])
def test_shares_of_lengths_add_up_to_the_mean(law: Pooling, mean: float) -> None:
    shares = length_shares(law, mean)
    assert sum(shares.values()) == pytest.approx(1)
    total = sum(length * share for length, share in shares.items())
    assert total == pytest.approx(mean, rel=0.1 if mean > 1 else 0.3)


def test_what_is_said_of_lists_is_read() -> None:
    assert read_lists("100000 zipf:0.9") == (100_000, "zipf:0.9")
    assert read_lists("5 zipf:0.9,2.7") == (5, "zipf:0.9,2.7")
    assert read_lists("12 uniform") == (12, "uniform")
    for wrong in ("", "zipf:0.9", "0 uniform", "5 zipf:", "5 zipf:,", "5 zipf:1.0;", "5 even"):
        assert read_lists(wrong) is None
