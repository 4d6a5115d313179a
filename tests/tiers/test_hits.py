"""Hit rates beside caches that are simulated lookup by lookup, and what must hold of any cache."""

from __future__ import annotations

from collections import Counter, OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.lookups.popularity import UNIFORM, Distribution, Zipf, rows_of
from irgraph.ir.cost import Popularity
from irgraph.tiers.demand import demand
from irgraph.tiers.hits import POLICIES, Cache, Lookups, Policy, cache_of
from irgraph.tiers.library import list_tiers, load_tier

ROWS, LOOKUPS = 20_000, 300_000


def popularity(law: Distribution, rows: int = ROWS) -> Popularity:
    known = rows_of(law, rows)
    return Popularity(tuple(known.counts), tuple(known.chances))


def drawn(law: Zipf, rows: int, count: int, seed: int = 1) -> np.ndarray:
    """Draw lookups row by row from the law's own weights."""
    weights = (np.arange(1, rows + 1) + law.shift) ** -law.exponent
    return np.random.default_rng(seed).choice(rows, count, p=weights / weights.sum())


def simulated_lru(keys: np.ndarray, slots: int) -> float:
    """Return the share of the later two thirds of lookups that hit."""
    held: OrderedDict[int, None] = OrderedDict()
    hits, start = 0, len(keys) // 3
    for number, key in enumerate(keys.tolist()):
        if key in held:
            held.move_to_end(key)
            hits += number >= start
        else:
            held[key] = None
            if len(held) > slots:
                held.popitem(last=False)
    return hits / (len(keys) - start)


def simulated_ways(keys: np.ndarray, slots: int, ways: int = 32) -> float:
    """Return the same of a cache of sets, each with its own 32 least recently used rows."""
    sets = slots // ways
    spread = np.random.default_rng(7).integers(sets, size=int(keys.max()) + 1).tolist()
    caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(sets)]
    hits, start = 0, len(keys) // 3
    for number, key in enumerate(keys.tolist()):
        held = caches[spread[key]]
        if key in held:
            held.move_to_end(key)
            hits += number >= start
        else:
            held[key] = None
            if len(held) > ways:
                held.popitem(last=False)
    return hits / (len(keys) - start)


def simulated_lfu(keys: np.ndarray, slots: int) -> float:
    """Return the share that hits where the rows looked up most so far lie in the cache."""
    start = len(keys) // 2
    most = {key for key, _ in Counter(keys[:start].tolist()).most_common(slots)}
    return float(np.isin(keys[start:], list(most)).mean())


@pytest.mark.parametrize("law", [Zipf(0.8, 1), Zipf(0.89, 2.75), Zipf(1.05, 1), Zipf(1.2, 1)])
@pytest.mark.parametrize("share", [0.02, 0.2])
def test_least_recently_used_is_within_half_a_percent_of_simulated(law: Zipf, share: float) -> None:
    keys, slots = drawn(law, ROWS, LOOKUPS), int(share * ROWS)
    cache = cache_of([Lookups(popularity(law), 1.0)], slots)
    assert cache.hit_rate(0) == pytest.approx(simulated_lru(keys, slots), abs=0.005)
    assert cache.cached_bytes == pytest.approx(slots, rel=1e-6)


@pytest.mark.parametrize(("law", "share"), [(Zipf(0.89, 2.75), 0.05), (Zipf(1.2, 1), 0.05)])
def test_32_ways_hit_as_often(law: Zipf, share: float) -> None:
    keys, slots = drawn(law, ROWS, LOOKUPS), int(share * ROWS)
    found = cache_of([Lookups(popularity(law), 1.0)], slots).hit_rate(0)
    assert found == pytest.approx(simulated_ways(keys, slots), abs=0.005)


def test_least_frequently_used_holds_the_most_popular_rows() -> None:
    law, slots = Zipf(1.05, 1), 2_000
    keys = drawn(law, ROWS, 4 * LOOKUPS)
    found = cache_of([Lookups(popularity(law), 1.0)], slots, "lfu").hit_rate(0)
    assert found == pytest.approx(simulated_lfu(keys, slots), abs=0.005)


def test_the_published_table_of_hit_rates() -> None:
    """Two hundred thousand rows whose ranks count from 0: least recently used, chosen before."""
    expected = {
        (0.8, 0, 0.05): (0.3770, 0.5115),
        (0.89, 1.75, 0.2): (0.6870, 0.7728),
        (1.2, 0, 0.05): (0.9020, 0.9307),
    }
    for (exponent, shift, share), (lru, static) in expected.items():
        table = Lookups(popularity(Zipf(exponent, shift), 200_000), 1.0)
        assert cache_of([table], share * 2e5).hit_rate(0) == pytest.approx(lru, abs=0.001)
        assert cache_of([table], share * 2e5, "static").hit_rate(0) == pytest.approx(
            static, abs=0.001
        )


def test_two_tables_share_one_cache_as_simulated() -> None:
    """Rows of two widths, one table looked up three times as often; the cache counts bytes."""
    laws, sizes, rows = (Zipf(0.9, 1), Zipf(1.1, 1)), (512, 128), (10_000, 5_000)
    source = np.random.default_rng(2)
    which = source.random(LOOKUPS) < 0.25
    keys = np.where(
        which,
        drawn(laws[1], rows[1], LOOKUPS, 4) + rows[0],
        drawn(laws[0], rows[0], LOOKUPS, 5),
    )
    capacity, used, hits, asked = 1_000_000, 0, [0, 0], [0, 0]
    held: OrderedDict[int, int] = OrderedDict()
    for number, key in enumerate(keys.tolist()):
        table = int(key >= rows[0])
        late = number > LOOKUPS // 3
        asked[table] += late
        if key in held:
            held.move_to_end(key)
            hits[table] += late
            continue
        held[key] = sizes[table]
        used += sizes[table]
        while used > capacity:
            used -= held.popitem(last=False)[1]
    tables = [
        Lookups(popularity(law, n), float(size), rate)
        for law, n, size, rate in zip(laws, rows, sizes, (3.0, 1.0), strict=True)
    ]
    cache = cache_of(tables, capacity)
    for number in (0, 1):
        assert cache.hit_rate(number) == pytest.approx(hits[number] / asked[number], abs=0.005)


def test_a_batch_fetches_each_missing_row_once() -> None:
    """Batches of 2,000 lookups through a cache that is filled after each, as FBGEMM's is."""
    law, slots, batch = Zipf(0.89, 2.75), 4_000, 2_000
    keys = drawn(law, ROWS, 200 * batch).reshape(200, batch)
    held: OrderedDict[int, None] = OrderedDict()
    fetched = []
    for row in keys:
        different = dict.fromkeys(row.tolist())
        fetched.append(sum(key not in held for key in different))
        for key in different:
            held.pop(key, None)
            held[key] = None
        while len(held) > slots:
            held.popitem(last=False)
    found = cache_of([Lookups(popularity(law), 1.0)], slots).distinct_misses(0, batch)
    assert found / batch == pytest.approx(np.mean(fetched[60:]) / batch, abs=0.005)


TABLES = st.lists(
    st.builds(
        lambda law, rows, row, rate: Lookups(popularity(law, rows), row, rate),
        st.sampled_from([UNIFORM, Zipf(0.7), Zipf(1.2, 3.0)]),
        st.integers(1, 5_000),
        st.integers(16, 1024),
        st.integers(1, 100),
    ),
    min_size=1,
    max_size=4,
)


def asked(cache: Cache, row: int, tier: str, *, sub_block: bool = False) -> tuple[float, float]:
    """Return the reads and bytes that misses ask of a tier."""
    missed = sum(t.rate * (1 - cache.hit_rate(i)) for i, t in enumerate(cache.tables))
    found = demand(load_tier(tier), row, missed, sub_block=sub_block)
    return found.reads, found.nbytes


@settings(max_examples=60, deadline=None)
@given(TABLES, st.floats(0, 1.2), st.floats(0, 1.2), st.sampled_from(POLICIES))
def test_more_fast_memory_never_raises_reads(
    tables: list[Lookups], one: float, other: float, policy: Policy
) -> None:
    whole = sum(t.row * t.popularity.rows for t in tables)
    less, more = sorted((one, other))
    small, large = (cache_of(tables, share * whole, policy) for share in (less, more))
    assert asked(large, 512, "nand")[0] <= asked(small, 512, "nand")[0] * (1 + 1e-9) + 1e-9
    assert large.cached_bytes <= max(more * whole, whole) * (1 + 1e-6)
    for number in range(len(tables)):
        assert 0 <= small.distinct_misses(number, 100) <= 100 + 1e-6


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10_000), st.floats(0, 1e6), st.sampled_from(list_tiers()))
def test_reads_of_part_of_a_block_never_raise_bytes(row: int, rows: float, name: str) -> None:
    tier = load_tier(name)
    whole, part = (demand(tier, row, rows, sub_block=part) for part in (False, True))
    assert part.nbytes <= whole.nbytes
    assert part.reads == whole.reads
    assert part.nbytes >= part.row_bytes * (1 - 1e-12)


def test_amplification_is_the_block_over_the_row() -> None:
    """Rows of 128 and 512 bytes in blocks of 4 KB: 32 and 8 times, as SDM's readers cite it."""
    nand = load_tier("nand")
    assert [demand(nand, row, 10.0).amplification for row in (128, 512)] == [32, 8]
    assert demand(nand, 128, 10.0, sub_block=True).amplification == 4
    assert demand(load_tier("optane"), 512, 10.0).amplification == 1
