"""The service view: by hand, end to end beside a simulated trace, and from the command line."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from msgspec.structs import replace

from costmodels.lookups.popularity import Zipf, rows_of
from irgraph.diagnostics import IrgraphError
from irgraph.execute import compare
from irgraph.ir.cost import Popularity
from irgraph.predict.options import PredictOptions
from irgraph.serving.problem import PlacementProblem, ServedTable, Store, fixed_of, tables_of
from irgraph.serving.service import (
    MAX_LOAD,
    ServiceLoad,
    placed_model,
    services,
    services_and_others,
)
from irgraph.text import parse
from irgraph.tiers.bags import listed_bags
from irgraph.tiers.library import load_platform, load_tier
from irgraph.tiers.queueing import loaded_latency

TEXT = """model "m" { format = 2  dims = {B = 64} }

device @gpu0 "v100"
input %x : f32[B, 32] in $x
input %ids : i64[40*B] in $ids
input %starts : i64[B] in $starts
param %w "items.weight" : f32[1000000000, 32] in $w

%y, %y1, %y2, %y3 = aten._embedding_bag(%w, %ids, %starts) : f32[B, 32] in $y, i64[40*B] in $y1, i64[B] in $y2, i64[0] in $y3
%s = aten.add(%x, %y) : f32[B, 32] in $s
return %s
"""  # noqa: E501
PADDED = "(%w, %ids, %starts, false, 0, false, none, false, 3)"
SMALL = TEXT.replace("f32[1000000000, 32]", "f32[1000, 32]")
OPTIONS = PredictOptions(device="v100", indices="zipf:0.9,1")


def test_a_service_by_hand() -> None:
    """One table of 128 GB on hosts with 96 GB of fast memory: two hosts, or one with NAND."""
    nand = load_platform("dgx-1-nand")
    wanted = ServiceLoad(1000.0, 50_000.0)
    found = {one.name: one for one in services(parse(TEXT), nand, wanted, OPTIONS)}
    alone, placed = found["HBM2-V100 alone (2 hosts hold a copy)"], found["4 x NAND-P3700-800GB"]
    assert alone.fleet.hosts == 2
    assert alone.fleet.watts == 7000
    assert placed.fleet.hosts == 1
    assert placed.fleet.watts == pytest.approx(3500 + 4 * (4 + placed.load * 21))
    assert placed.hours == pytest.approx(24 * 128e9 / (10 * 3200e9))
    assert placed.limits["compute"] == pytest.approx(8e6 / placed.step)
    bound = MAX_LOAD * 4 * 460e3 / placed.reads
    assert placed.limits["reads of NAND-P3700-800GB"] == pytest.approx(bound)
    assert placed.qps == min(placed.limits.values())
    assert placed.cache_bytes == pytest.approx(96e9, rel=0.01)


def test_a_tighter_limit_takes_more_hosts_and_one_too_tight_is_refused() -> None:
    nand = load_platform("dgx-1-nand")
    hosts = []
    for limit in (50_000.0, 2_000.0, 1_000.0):
        found = services(parse(TEXT), nand, ServiceLoad(1e5, limit), OPTIONS)
        hosts.append(min(one.fleet.hosts for one in found))
        assert all(one.latency <= limit * 1.001 for one in found)
    assert hosts == sorted(hosts)
    with pytest.raises(IrgraphError, match="no placement serves"):
        services(parse(TEXT), nand, ServiceLoad(1e5, 10.0), OPTIONS)


def test_end_to_end_within_five_percent_of_a_simulated_trace() -> None:
    """Queries at random, their lookups through a least-recently-used cache, misses to dies."""
    rows, slots, each, qps = 20_000, 4_000, 8, 60_000.0
    tier = load_tier("nand")
    known = rows_of(Zipf(0.9, 1), rows)
    popularity = Popularity(tuple(known.counts), tuple(known.chances))
    table = ServedTable("t", rows, 112, float(each), popularity)
    problem = PlacementProblem([table], slots * 128.0, Store(tier, 1, 1e12))
    placed = problem.layout_for(())
    reads, wait = simulated(rows, slots, each, qps, tier.dies, tier.latency_us.value)
    assert placed.query_demand.reads == pytest.approx(reads, rel=0.05)
    load = qps * placed.seconds
    assert 0.2 < load < 0.7
    assert loaded_latency(tier, load) == pytest.approx(wait, rel=0.05)


def test_pooled_bags_take_their_part_of_the_room_and_are_within_five_percent_of_a_trace() -> None:
    """Lists of rows that come again, through a cache of bags and one of rows behind it."""
    rows, length, lists, room = 20_000, 4, 3_000, 300_000.0
    known, every = (rows_of(Zipf(0.9, 1), n) for n in (rows, lists))
    law, popularity = (Popularity(tuple(k.counts), tuple(k.chances)) for k in (every, known))
    bags = listed_bags(law, {length: 1.0}, length)
    table = ServedTable("t", rows, 112, float(length), popularity, bags, 8 * (2 + length) + 112)
    problem = PlacementProblem([table], room, Store(load_tier("nand"), 1, 1e12))
    plain = problem.layout_for(())
    best = problem.with_pooled_bags(plain)
    assert 0 < best.pooled_bytes < room and best.seconds < plain.seconds
    assert best.pooled_bytes + best.cache.cached_bytes == pytest.approx(room, rel=0.01)
    slots = int((room - best.pooled_bytes) / 128)
    reads = reads_behind_bags(rows, lists, length, best.pooled, slots)
    assert best.query_demand.reads == pytest.approx(reads, rel=0.05)
    assert problem.with_pooled_bags(problem.layout_for(["t"])).pooled == 0, "it does not fit"
    bare = PlacementProblem([replace(table, bags=None)], room, problem.slow)
    assert bare.with_pooled_bags(bare.layout_for(())).pooled == 0


MIXED = """model "m" { format = 2  dims = {B = 64} }

device @gpu0 "v100"
input %i : i64[4*B] in $i
input %o : i64[B] in $o
input %p : f32[4*B] in $p
param %a "a" : f32[1000000, 32] in $a
param %b "b" : f32[1000000, 32] in $b
param %c "c" : f32[1000000, 32] in $c
param %d "d" : f32[1000000, 32] in $d
param %e "e" : f32[1000000, 32] in $e

%s, %s1, %s2, %s3 = aten._embedding_bag(%a, %i, %o) : f32[B, 32] in $s, i64[4*B] in $s1, i64[B] in $s2, i64[0] in $s3
%m, %m1, %m2, %m3 = aten._embedding_bag(%b, %i, %o, false, 1) : f32[B, 32] in $m, i64[4*B] in $m1, i64[B] in $m2, i64[0] in $m3
%w, %w1, %w2, %w3 = aten._embedding_bag(%c, %i, %o, false, 0, false, %p) : f32[B, 32] in $w, i64[4*B] in $w1, i64[B] in $w2, i64[0] in $w3
%t, %t1, %t2, %t3 = aten._embedding_bag(%d, %i, %o) : f32[B, 32] in $t, i64[4*B] in $t1, i64[B] in $t2, i64[0] in $t3
%u, %u1, %u2, %u3 = aten._embedding_bag(%d, %i, %o) : f32[B, 32] in $u, i64[4*B] in $u1, i64[B] in $u2, i64[0] in $u3
%x = aten.embedding(%e, %o) : f32[B, 32] in $x
%y = aten.stack([%s, %m, %w, %t, %u, %x], 0) : f32[6, B, 32] in $y
return %y
"""  # noqa: E501


def test_tables_that_cannot_be_placed_stay_in_fast_memory_and_are_counted_once() -> None:
    """Five tables of 128 MB: a weighed, a shared and a plain lookup leave two to be placed."""
    graph, nand = parse(MIXED), load_platform("dgx-1-nand")
    reasons = {one.name: (one.nbytes, one.reason) for one in fixed_of(graph)}
    assert {name: nbytes for name, (nbytes, _) in reasons.items()} == dict.fromkeys("cde", 128e6)
    assert "weights its rows" in reasons["c"][1] and "a second time" in reasons["d"][1]
    assert [table.name for table in tables_of(graph)] == ["a", "b"]
    small = replace(nand, fast=replace(nand.fast, tables_gb=0.4))
    wanted = ServiceLoad(100.0, 50_000.0)
    ways, others = services_and_others(graph, small, wanted, PredictOptions(device="v100"))
    assert others == []
    alone, placed = (next(w for w in ways if bool(w.moved) is moved) for moved in (False, True))
    assert alone.group == 2, "640 MB on hosts of 400"
    assert set(placed.moved) == {"a", "b"} and placed.cache_bytes <= 16e6
    model = placed_model(graph, small, placed, wanted)
    assert [op.base for op in model.leaves()].count("tier_read") == 2, "sums and means apart"
    assert compare(graph, model).same
    tight = replace(nand, fast=replace(nand.fast, tables_gb=0.3))
    _, others = services_and_others(graph, tight, wanted, PredictOptions(device="v100"))
    assert others == [
        "NAND-P3700-800GB: fast memory does not hold the 0.384 GB that cannot be moved"
    ]
    with pytest.raises(IrgraphError, match=r"no table can be placed: items\.weight: .* padding"):
        services(parse(TEXT.replace("(%w, %ids, %starts)", PADDED)), nand, wanted, OPTIONS)


def test_a_model_that_is_placed_already_is_not_searched_again() -> None:
    """Fast memory would hold all tables that are left, and the others would take nothing."""
    nand, wanted = load_platform("dgx-1-nand"), ServiceLoad(100.0, 50_000.0)
    graph = parse(TEXT)
    (way,) = (one for one in services(graph, nand, wanted, OPTIONS) if one.moved)
    model = placed_model(graph, nand, way, wanted)
    with pytest.raises(IrgraphError, match="placed already"):
        services(model, nand, wanted, OPTIONS)


def reads_behind_bags(rows: int, lists: int, length: int, bags: int, slots: int) -> float:
    """Return the rows that a query of one bag reads, bags and rows held least recently used."""
    source = np.random.default_rng(11)
    (first, second) = (
        weights / weights.sum()
        for n in (rows, lists)
        for weights in [(np.arange(1, n + 1) + 1.0) ** -0.9]
    )
    total = late = 0
    for seed in range(8):  # the rows of popular lists vary much: several sets of lists
        held_bags, held_rows = OrderedDict[int, None](), OrderedDict[int, None]()
        content = np.random.default_rng(seed).choice(rows, (lists, length), p=first)
        for number, name in enumerate(source.choice(lists, 30_000, p=second).tolist()):
            missed = 0
            if not touched(held_bags, name, bags):
                found = [touched(held_rows, key, slots) for key in content[name].tolist()]
                missed = found.count(False)
            if number >= 10_000:
                total, late = total + missed, late + 1
    return total / late


def touched(held: OrderedDict[int, None], key: int, slots: int) -> bool:
    """Use a key of a cache; return whether it was held."""
    found = key in held
    held[key] = None
    held.move_to_end(key)
    if len(held) > slots:
        held.popitem(last=False)
    return found


def test_a_service_may_hold_pooled_bags_and_says_what_they_take() -> None:
    nand = load_platform("dgx-1-nand")
    plain = ServiceLoad(1000.0, 50_000.0)
    pooled = ServiceLoad(1000.0, 50_000.0, lists="1000000000 zipf:0.9")
    first, second = (
        next(one for one in services(parse(TEXT), nand, wanted, OPTIONS) if one.moved)
        for wanted in (plain, pooled)
    )
    assert first.pooled == 0 < second.pooled
    assert second.reads < first.reads and 0 < second.pooled_hits < 1
    assert second.pooled_bytes + second.cache_bytes <= 96e9 * 1.001
    model = placed_model(parse(TEXT), nand, second, pooled, ["zipf:0.9,1"])
    probe = next(op for op in model.leaves() if op.name == "irgraph.bag_probe")
    assert probe.inputs[0].shape[0] == second.pooled
    reads = next(op for op in model.leaves() if op.name == "irgraph.tier_read")
    assert reads.attributes["lists"] == pooled.lists
    assert services_and_others(parse(SMALL), nand, plain, OPTIONS)[1] == [
        "NAND-P3700-800GB: not needed, fast memory holds all tables"
    ]


def simulated(
    rows: int, slots: int, each: int, qps: float, dies: float, service: float
) -> tuple[float, float]:
    """Return reads a query and mean microseconds of a read, of queries one by one."""
    source = np.random.default_rng(8)
    weights = (np.arange(1, rows + 1) + 1.0) ** -0.9
    count = 40_000
    keys = source.choice(rows, (count, each), p=weights / weights.sum())
    when = np.cumsum(source.exponential(1e6 / qps, count))
    held: OrderedDict[int, None] = OrderedDict()
    free = np.zeros(round(dies))
    total, waited, late = 0, 0.0, 0
    for number in range(count):
        for key in keys[number].tolist():
            if key in held:
                held.move_to_end(key)
                continue
            held[key] = None
            if len(held) > slots:
                held.popitem(last=False)
            die = source.integers(len(free))
            start = max(float(when[number]), float(free[die]))
            free[die] = start + source.exponential(service)
            if number >= count // 4:
                total, waited = total + 1, waited + float(free[die] - when[number])
        late += number >= count // 4
    return total / late, waited / total
