"""Formats and tiers together: the front is one, what is shown was executed, narrow rows help."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from costmodels.lookups.popularity import Zipf, rows_of
from irgraph.capture.live import capture_file
from irgraph.diagnostics import IrgraphError
from irgraph.execute import compare_ranks
from irgraph.ir.cost import Popularity
from irgraph.ir.narrow.prepared import prepared_of
from irgraph.ops.references.rows import to_format
from irgraph.plans.plan import Plan, TableSharding
from irgraph.precision.candidates import TABLE, candidates
from irgraph.precision.data import random_batch, read_data
from irgraph.precision.measure import PrecisionBench
from irgraph.predict.options import PredictOptions
from irgraph.predict.prediction import predict
from irgraph.predict.ranks import rank_groups
from irgraph.schedule.ranks import simulate_ranks
from irgraph.serving.problem import PlacementProblem, ServedTable, Store
from irgraph.serving.service import ServiceLoad
from irgraph.text import parse, print_graph
from irgraph.tiers.hits import POLICIES, Policy
from irgraph.tiers.library import load_platform, load_tier
from irgraph.tiers.tier import read_platform
from irgraph.tradeoff import TradeoffPoint, best_within_budget, tradeoff
from irgraph.tradeoff.sharded_plan import quantize_tables
from irgraph.verbs.place import place
from irgraph.verbs.sharding.shard import shard
from irgraph.verbs.tiered_lookups import TablePlacement, placeable_lookups

FILE = Path(__file__).resolve().parents[2] / "examples" / "quantize.py"
PLATFORM, LAW = "dgx-1-nand", "zipf:1.05"
MAXIMUM = """model "m" { format = 2  dims = {B = 32} }

device @gpu0 "v100"
input %i : i64[2*B] in $i
input %o : i64[B] in $o
param %a "a" : f32[100, 8] in $a
param %b "b" : f32[100, 8] in $b
param %w "w" : f32[1, 8] in $w

%s, %s1, %s2, %s3 = aten.embedding_bag(%a, %i, %o, mode = 0) : f32[B, 8] in $s, i64[2*B] in $s1, i64[B] in $s2, i64[0] in $s3
%t, %t1, %t2, %t3 = aten.embedding_bag(%b, %i, %o, mode = 2) : f32[B, 8] in $t, i64[2*B] in $t1, i64[B] in $t2, i64[B, 8] in $t3
%x = aten.add(%s, %t) : f32[B, 8] in $x
%y = aten.linear(%x, %w) : f32[B, 1] in $y
return %y
"""  # noqa: E501
OPTIONS = PredictOptions(device="v100", indices=LAW)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the example's model, small and as it is served, and its data."""
    from irgraph.capture.live.target import load_file

    made = tmp_path_factory.mktemp("tradeoff")
    torch.save(load_file(str(FILE)).data(steps=20, size=256, count=1), made / "data.pt")
    for name, batch in (("infer", 256), ("serve", 512)):
        graph = capture_file(f"{FILE}:{name}", batch=batch).graph
        (made / f"{name}.ir").write_text(print_graph(graph))
    return made


@pytest.fixture(scope="module")
def bench(folder: Path) -> PrecisionBench:
    graph = parse((folder / "infer.ir").read_text())
    known = [one for one in candidates(graph, ["i8", "i4"]) if one.kind == TABLE]
    return PrecisionBench(graph, known, read_data(str(folder / "data.pt"), graph), OPTIONS)


@pytest.fixture(scope="module")
def points(bench: PrecisionBench, folder: Path) -> list[TradeoffPoint]:
    served = parse((folder / "serve.ir").read_text())
    wanted = ServiceLoad(20_000.0, 10_000.0)
    return tradeoff(bench, served, load_platform(PLATFORM), wanted, OPTIONS)


def test_the_front_is_one(points: Sequence[TradeoffPoint]) -> None:
    """No point of it is bettered by any, and every other point is."""
    counted = [one for one in points if one.service.group == 1]
    front = [one for one in counted if one.front]
    assert len(front) > 3
    assert not any(one.front for one in points if one.service.group > 1)
    for one in counted:
        others = [o for o in counted if o is not one and o.kl <= one.kl and o.aim <= one.aim]
        strict = [o for o in others if o.kl < one.kl or o.aim < one.aim]
        assert not strict if one.front else others
    assert front[0].kl == 0 and not front[0].formats
    assert front[-1].service.fleet.watts < 0.6 * front[0].service.fleet.watts
    assert front[-1].service.fleet.hosts < front[0].service.fleet.hosts


def test_the_divergence_is_that_of_the_placed_model_executed(
    bench: PrecisionBench, points: Sequence[TradeoffPoint]
) -> None:
    for one in (p for p in points if p.front and p.plan):
        narrow = bench.rewritten_graph(one.plan)
        names = [name for name, _, _ in placeable_lookups(narrow)]
        moved = place(narrow, names, TablePlacement("nand", cached=dict.fromkeys(names, 100))).graph
        assert bench.compare(moved).kl == one.kl > 0


def test_what_keeps_a_budget_is_the_least_of_the_front(points: Sequence[TradeoffPoint]) -> None:
    front = [one for one in points if one.front]
    assert best_within_budget(points, 0.0) is front[0]
    assert best_within_budget(points, front[2].kl) is front[2]
    assert best_within_budget(points, 1.0) is front[-1]


def test_other_tables_are_not_served(bench: PrecisionBench, folder: Path) -> None:
    text = (folder / "serve.ir").read_text().replace("tables.0.weight", "other.weight")
    with pytest.raises(IrgraphError, match=r"tables\.0\.weight.*no such table"):
        tradeoff(bench, parse(text), load_platform(PLATFORM), ServiceLoad(1e3, 1e4), OPTIONS)


SPREAD = """{"name": "two", "base_watts": {"value": 1000, "source": "made up"}, "device": "v100",
 "devices": 2, "fast": {"tier": "hbm2", "count": 2, "capacity_gb": 16, "tables_gb": %g},
 "slow": [{"tier": "nand", "count": 1}]}"""


def test_tables_are_spread_over_devices_that_hold_them_in_their_formats(
    bench: PrecisionBench, folder: Path
) -> None:
    """Two devices hold 0.5 MB of tables each: not 1.28 MB of f32, but half of it narrower."""
    small = bench.graph
    platform = read_platform(SPREAD % 1.0e-3, "two.json")
    found = tradeoff(bench, small, platform, ServiceLoad(100.0, 50_000.0), OPTIONS, spread=True)
    over = [one for one in found if one.sharded_plan is not None]
    assert over and all(one.formats for one in over), "f32 does not fit"
    for model in (
        m for one in over if one.sharded_plan is not None for m in one.sharded_plan.models
    ):
        rows = {n: w.nbytes for n, w, _ in placeable_lookups(model)}
        assert 0 < sum(rows.values()) <= 0.5e6
    point = next(one for one in over if set(one.formats.values()) == {"i8"})
    assert point.sharded_plan is not None and point.service.ranks == 2
    for model in point.sharded_plan.models:
        held = [one for one in prepared_of(model) if one.part == "rows"]
        assert held and all(one.format == "i8" for one in held)
    assert compare_ranks(small, point.sharded_plan.models).same
    every = [name for name, _, _ in placeable_lookups(small)]
    by_columns = Plan(2, {name: TableSharding("column-wise", (0, 1)) for name in every})
    cut = [quantize_tables(shard(small, by_columns, rank).graph, point.formats) for rank in (0, 1)]
    assert not compare_ranks(small, cut).same, "a row's halves have scales of their own"
    timelines = [predict(m, OPTIONS, ranks=2).timeline for m in point.sharded_plan.models]
    groups = rank_groups(point.sharded_plan.models)
    assert point.service.step == simulate_ranks(timelines, groups=groups).step_time
    assert point.service.step > predict(small, OPTIONS).step_time, "collectives take time"
    assert point.service.fleet.hosts * point.service.qps >= 100
    assert not any(one.front and one.service.name.endswith("alone") for one in found)


@pytest.mark.parametrize("to", ["f16", "bf16", "i8", "i4", "i2"])
def test_blocks_of_rows_hold_what_the_whole_table_does(to: str) -> None:
    torch.manual_seed(0)
    table = torch.randn(100, 16) * torch.logspace(-3, 3, 100).unsqueeze(1)
    assert torch.equal(to_format(table, to)[30:70], to_format(table[30:70], to))


def test_a_host_of_one_device_spreads_nothing(bench: PrecisionBench) -> None:
    text = (SPREAD % 1.0).replace('"devices": 2', '"devices": 1')
    with pytest.raises(IrgraphError, match="one device"):
        tradeoff(
            bench,
            bench.graph,
            read_platform(text, "one.json"),
            ServiceLoad(100.0, 5e4),
            OPTIONS,
            spread=True,
        )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_narrower_tables_never_lower_hits_nor_raise_reads(policy: Policy, seed: int) -> None:
    """The cache has the same bytes; tables become narrower one after the other."""
    source = np.random.default_rng(seed)
    tables = []
    for number in range(4):
        rows, law = int(10 ** source.uniform(3, 6)), Zipf(source.uniform(0.6, 1.2), 1.0)
        known = rows_of(law, rows)
        popularity = Popularity(tuple(known.counts), tuple(known.chances))
        tables.append(
            ServedTable(f"t{number}", rows, 512, float(source.integers(5, 200)), popularity)
        )
    fast = 0.05 * sum(table.nbytes for table in tables)
    hits, reads, nbytes = [], [], []
    for row in (512, 136, 68, 36):
        for number in range(len(tables)):
            known_tables = [
                ServedTable(t.name, t.rows, row if n <= number else t.row, t.lookups, t.popularity)
                for n, t in enumerate(tables)
            ]
            slow = Store(load_tier("optane"), 1, 1e13)
            placed = PlacementProblem(known_tables, fast, slow, policy).layout_for(())
            hits.append(placed.hit_rate())
            reads.append(placed.query_demand.reads)
            nbytes.append(placed.query_demand.nbytes)
        tables = known_tables
    assert hits == pytest.approx(sorted(hits), abs=1e-9)
    assert hits[-1] > hits[0] + 0.02
    assert reads == pytest.approx(sorted(reads, reverse=True), rel=1e-6)
    assert nbytes == pytest.approx(sorted(nbytes, reverse=True), rel=1e-6)


def test_tables_that_no_format_takes_stay_as_they_are() -> None:
    """Maxima of bags are not looked up in narrow rows: that table is left, the other narrowed."""
    graph = parse(MAXIMUM)
    known = [one for one in candidates(graph, ["i8"]) if one.kind == TABLE]
    assert [one.formats for one in known] == [("i8",), ()]
    bench = PrecisionBench(graph, known, random_batch(graph), OPTIONS)
    found = tradeoff(bench, graph, load_platform(PLATFORM), ServiceLoad(10.0, 50_000.0), OPTIONS)
    assert [dict(one.formats) for one in found] == [{}, {"a": "i8"}]
