"""How bags share their lookups: formulas beside bags that were drawn one by one."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from costmodels.formulas.lookup import DRAM_CYCLES, LookupTable, forward_time
from costmodels.lookups.pooling import EQUAL, Lengths, LogNormal, Normal, Poisson, Pooling, longest
from costmodels.lookups.popularity import (
    Distribution,
    Floats,
    HeavyHitters,
    Zipf,
    distinct_rows,
    rows_of,
)
from tests.costmodels.families.helpers import machine
from tests.costmodels.lookups.drawn import CLUSTERED, draw_lengths, draw_rows, offsets_of

LAWS: list[Pooling] = [
    EQUAL, Poisson(), Normal(21, 35), Normal(8, 1), LogNormal(0.5), LogNormal(1.5),
    Lengths((0.0, 1.0, 40.0), (5.0, 90.0, 5.0)),
]  # fmt: skip


@cache
def _mean(law: Normal) -> float:
    """Return the mean of very many lengths that numpy draws."""
    drawn = np.random.default_rng(2).normal(law.mean, law.deviation, 10**6)
    return float(np.maximum(drawn, 0).mean())


def _sampled(law: Pooling, bags: int, mean: float, source: np.random.Generator) -> float:
    """Return the longest of bags drawn by numpy, stretched to a mean."""
    if isinstance(law, Poisson):
        return float(source.poisson(mean, bags).max())
    if isinstance(law, Normal):
        drawn = np.maximum(source.normal(law.mean, law.deviation, bags), 0)
        whole = _mean(law)
    elif isinstance(law, LogNormal):
        drawn = source.lognormal(0, law.deviation, bags)
        whole = float(np.exp(law.deviation**2 / 2))
    elif isinstance(law, Lengths):
        drawn = source.choice(law.lengths, bags, p=np.array(law.bags) / sum(law.bags))
        whole = np.average(law.lengths, weights=law.bags)
    else:
        return mean
    return float(drawn.max() / whole * mean)


@pytest.mark.parametrize(("bags", "mean"), [(1, 6), (64, 3), (4096, 10)])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_longest_bag_is_that_of_sampled_bags(law: Pooling, bags: int, mean: int) -> None:
    source = np.random.default_rng(5)
    sampled = np.mean([_sampled(law, bags, mean, source) for _ in range(300)])
    expected = min(max(sampled, mean), bags * mean)
    assert longest(law, bags, bags * mean) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("lookups", [0, 7, 10_000])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_drawn_bags_have_all_lookups_and_the_expected_longest(law: Pooling, lookups: int) -> None:
    source = np.random.default_rng(3)
    drawn = [draw_lengths(law, 1000, lookups, source) for _ in range(100)]
    assert all(lengths.sum() == lookups and lengths.min() >= 0 for lengths in drawn)
    assert (offsets_of(drawn[0])[1:] == np.cumsum(drawn[0])[:-1]).all()
    if lookups == 10_000:
        found = np.mean([lengths.max() for lengths in drawn])
        assert longest(law, 1000, lookups) == pytest.approx(found, rel=0.12)


def test_a_single_bag_has_all_lookups() -> None:
    assert all(longest(law, 1, 50) == 50 for law in LAWS)
    assert all(longest(law, 10, 0) == 0 for law in LAWS)


TRACE = HeavyHitters((0.02, 0.01, 0.0032), Zipf(0.89, 2.75))
"""FBGEMM's published figures, with more hitters."""


def _fbgemm(law: HeavyHitters, rows: int) -> Floats:
    """Return every row's chance as FBGEMM's generator has it: k + q + H for k from 1 on."""
    after = np.arange(1, rows - len(law.chances) + 1) + law.law.shift + len(law.chances)
    weights = after**-law.law.exponent
    return np.array([*law.chances, *(1 - sum(law.chances)) * weights / weights.sum()])


@pytest.mark.parametrize("rows", [2, 3, 50, 101_083])
def test_heavy_hitters_have_the_chances_of_fbgemms_generator(rows: int) -> None:
    found = rows_of(TRACE, rows)
    assert found.counts.sum() == rows
    assert (found.counts * found.chances).sum() == pytest.approx(1)
    if rows > 3:
        chances = _fbgemm(TRACE, rows)
        exact = -np.expm1(200_000 * np.log1p(-chances)).sum()
        assert found.distinct_count(200_000) == pytest.approx(exact, rel=1e-4)
        assert found.chances[:20] == pytest.approx(chances[:20], rel=1e-4)


@pytest.mark.parametrize("law", [Zipf(1.05), TRACE], ids=str)
def test_distinct_rows_are_those_of_drawn_ones(law: Distribution) -> None:
    source = np.random.default_rng(1)
    drawn = [len(set(draw_rows(law, 30_000, 20_000, source).tolist())) for _ in range(5)]
    assert distinct_rows(law, 30_000, 20_000) == pytest.approx(np.mean(drawn), rel=0.01)


def test_clustered_lookups_are_the_same_rows_closer_together() -> None:
    even, near = (
        draw_rows(TRACE, 5000, 4000, np.random.default_rng(7), share) for share in (0.0, CLUSTERED)
    )
    assert sorted(even) == sorted(near)

    def gaps(rows: list[int]) -> float:
        last: dict[int, int] = {}
        found = []
        for at, row in enumerate(rows):
            found += [at - last[row]] if row in last else []
            last[row] = at
        return float(np.median(found))

    assert gaps(near.tolist()) < 0.7 * gaps(even.tolist())


def test_a_lookup_takes_the_time_of_its_longest_bag() -> None:
    on = machine()
    table = LookupTable(10**8, 16, 512, 512 * 20)
    heavy = LookupTable(10**8, 16, 512, 512 * 20, pooling=LogNormal(2.0))
    rows = longest(LogNormal(2.0), 512, 512 * 20)
    assert rows > 40 * 20
    walked = (rows - 1) * DRAM_CYCLES / 1297
    assert forward_time([heavy], on) == pytest.approx(walked, rel=0.02)
    assert forward_time([table], on) < 0.2 * walked
    # beside a table of many short bags, the longest bag of any counts
    many = LookupTable(10**8, 16, 512, 512 * 20)
    assert forward_time([many, heavy], on) >= forward_time([heavy], on) * 0.99


def test_a_row_in_each_bag_waits_for_no_other() -> None:
    one = LookupTable(10**6, 64, 2048, 2048)
    assert forward_time([one], machine()) < 5
