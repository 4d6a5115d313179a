"""Che's approximation beside a simulated least-recently-used cache."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from costmodels.lookups.cache import Reads, lru_misses
from costmodels.lookups.popularity import UNIFORM, Distribution, Histogram, Zipf
from irgraph.ir.points.point_values import PointValues

LOOKUPS = 100_000
LAWS = [
    UNIFORM, Zipf(0.6), Zipf(0.9), Zipf(1.05), Zipf(1.05, 20.0), Zipf(1.4),
    Histogram((0.001, 0.099, 0.9), (0.4, 0.4, 0.2)),
]  # fmt: skip


def _drawn(law: Distribution, rows: int, seed: int, count: int = LOOKUPS) -> list[int]:
    """Draw rows one by one from the law itself, not from its groups."""
    weights = np.ones(rows)
    if isinstance(law, Zipf):
        weights = (np.arange(1, rows + 1) + law.shift) ** -law.exponent
    if isinstance(law, Histogram):
        sizes = np.rint(np.array(law.rows) * rows).astype(int)
        weights = np.repeat(np.array(law.lookups) / sizes, sizes)
    cumulated = np.cumsum(weights)
    drawn = np.random.default_rng(seed).random(count) * cumulated[-1]
    return np.searchsorted(cumulated, drawn).tolist()


def _simulated_misses(accesses: list[int], slots: int) -> list[bool]:
    held: OrderedDict[int, None] = OrderedDict()
    missed = []
    for row in accesses:
        missed.append(row not in held)
        held[row] = None
        held.move_to_end(row)
        if len(held) > slots:
            held.popitem(last=False)
    return missed


@pytest.mark.parametrize("rows", [1000, 30_000, 1_000_000])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_hit_rates_lie_within_half_a_percent_of_a_simulated_cache(
    law: Distribution, rows: int
) -> None:
    accesses = _drawn(law, rows, seed=rows)
    for slots in (100, 3000, 20_000):
        simulated = sum(_simulated_misses(accesses, slots)) / LOOKUPS
        (found,) = lru_misses([Reads(law, rows, LOOKUPS, 1)], slots)
        assert found / LOOKUPS == pytest.approx(simulated, abs=0.005), slots


def test_tables_read_together_share_the_cache() -> None:
    laws = [(Zipf(1.05), 50_000), (UNIFORM, 40), (UNIFORM, 100_000)]
    streams = [_drawn(law, rows, seed, 30_000) for seed, (law, rows) in enumerate(laws)]
    mixed = [
        row * 3 + table for rows in zip(*streams, strict=True) for table, row in enumerate(rows)
    ]
    missed = np.reshape(_simulated_misses(mixed, 4000), (-1, 3)).sum(0)
    reads = [Reads(law, rows, 30_000, 1) for law, rows in laws]
    found = lru_misses(reads, 4000, concurrency=3)
    assert np.array(found) / 30_000 == pytest.approx(missed / 30_000, abs=0.005)


def test_a_table_read_alone_has_the_whole_cache() -> None:
    reads = [Reads(UNIFORM, 1000, 50_000, 64)] * 3
    assert lru_misses(reads, 64_000, concurrency=1) == pytest.approx([1000] * 3)
    assert min(lru_misses(reads, 64_000, concurrency=3)) > 30_000


def test_a_cache_smaller_than_a_row_holds_none() -> None:
    assert lru_misses([Reads(UNIFORM, 10, 500, 128)], 100) == [500.0]


def test_more_popular_rows_are_found_more_often() -> None:
    found = [lru_misses([Reads(law, 10**6, 10**6, 128)], 10**6)[0] for law in (UNIFORM, *LAWS[1:4])]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("capacity", [1.0, 3e5, 2e6, 1e9])
@pytest.mark.parametrize("together", [1.0, 1.6, 3.0])
def test_one_point_alone_is_as_among_many(capacity: float, together: float) -> None:
    sizes = ((7, 40), (1000, 999), (40_000, 10_000), (3, 2_000_000))
    alone = [Reads(UNIFORM, rows, n, 512) for rows, n in sizes]
    other = [Reads(UNIFORM, 5, n // 2, 512) for _, n in sizes]
    many = [
        Reads(UNIFORM, _both(a.rows, b.rows), _both(a.lookups, b.lookups), 512)
        for a, b in zip(alone, other, strict=True)
    ]
    found = [missed.values for missed in map(as_many, lru_misses(many, capacity, together))]
    assert [float(values[0]) for values in found] == lru_misses(alone, capacity, together)
    assert [float(values[1]) for values in found] == lru_misses(other, capacity, together)


def _both(one: int, other: int) -> int:
    return PointValues(np.array([one, other]))  # type: ignore[return-value]


def as_many(value: object) -> PointValues:
    assert type(value) is PointValues
    return value
