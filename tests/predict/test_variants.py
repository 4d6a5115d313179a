"""Many variants at once have the times that each has alone."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from costmodels.evaluate.dlrm_v100 import dlrm
from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.resize import with_dims
from irgraph.predict import grid, variants
from irgraph.predict.prediction import predict
from irgraph.predict.variants import predict_variants
from irgraph.text import parse
from irgraph.tuning.build import search_space

DEVICES = ["v100", "a100", "t4"]
BATCHES = [{"B": size} for size in (1, 64, 2048, 4096)]


@pytest.mark.parametrize("name", ["DLRM_default", "DLRM_MLPerf"])
def test_every_combination_has_the_time_it_has_alone(name: str) -> None:
    graph = dlrm(name, 2048)
    found = predict_variants(graph, DEVICES, BATCHES)
    for row, device in enumerate(DEVICES):
        for column, dims in enumerate(BATCHES):
            alone = predict(with_dims(graph, dims), device)
            assert found.step_time[row, column] == alone.step_time
            assert found.active_time[row, column] == alone.timeline.active_time
    assert found.sizes == tuple(BATCHES)
    assert found.devices[0].startswith("V100")


TWO_STREAMS = """
model "m" { format = 1  dims = {B = 4096} }

device @gpu0 "v100"
stream side @gpu0
input %x : f32[B, 1024] in $b1

%a = aten.relu(%x) : f32[B, 1024] in $b2 on main/side
%b = aten.relu(%x) : f32[B, 1024] in $b3
%c = aten.sigmoid(%b) : f32[B, 1024] in $b4
"""


def test_streams_that_share_are_timed_one_by_one() -> None:
    graph = parse(TWO_STREAMS)
    found = predict_variants(graph, ["v100"], [{"B": 4096}, {"B": 16384}])
    for column, size in enumerate((4096, 16384)):
        alone = predict(with_dims(graph, {"B": size}))
        assert found.step_time[0, column] == alone.step_time
        assert found.active_time[0, column] == alone.timeline.active_time


KEPT = """
model "m" { format = 1  dims = {B = 32}  fixed_B = "aten.view (live#3): 8 is B/4"
  fixed_at_B = 32 }

input %x : f32[B, 64] in $b1
input %h : f32[8, 64] in $b2

%a = aten.relu(%x) : f32[B, 64] in $b3
%b = aten.relu(%h) : f32[8, 64] in $b4
"""


def test_sizes_that_some_numbers_do_not_follow_are_told_wherever_they_are_given() -> None:
    graph = parse(KEPT)
    told, note = predict_variants(graph, ["v100"], [{"B": 32}, {"B": 64}]).warnings
    assert told.startswith("B = 64, but some numbers hold at B = 32 alone")
    assert "no host is named" in note
    assert told in predict(graph, dims={"B": 64}).warnings
    assert told in predict(with_dims(graph, {"B": 64})).warnings
    assert f"warning: {told}" in search_space(graph, dims={"B": [32, 64]}).explain()
    assert predict_variants(graph, ["v100"], [{"B": 32}], hosts=["v100"]).warnings == ()
    assert not any("B = 32" in line for line in predict(graph).warnings)


HALF = """model "m" { format = 1  dims = {B = 32} }

device @gpu0 "a100"
param %w : f16[1001, 96] in $w
param %g : f16[96, B] in $g
input %x : f16[B, 96] in $x

%y = aten.linear(%x, %w) : f16[B, 1001] in $y
%v = aten.mm(%g, %x) : f16[96, 96] in $v
"""


def test_products_on_matrix_units_are_priced_at_all_sizes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Odd sizes and multiples of 8 alike, summed over or not."""
    graph, sizes = parse(HALF), [{"B": size} for size in range(2, 60)]
    times = [predict(with_dims(graph, size), "a100").step_time for size in sizes]
    monkeypatch.setattr(grid, "_price_each_size", None)
    assert list(predict_variants(graph, ["a100"], sizes).step_time[0]) == times


COPIES = """model "m" { format = 1  dims = {B = 32} }

device @gpu0 "v100"
input %x : f32[B, 96] @cpu in $x

%y = aten.to(%x) : f32[B, 96] in $y
%n = aten.layer_norm(%y, [96]) : f32[B, 96] in $n
%z = aten.to(%n) : f32[B, 96] @gpu1 in $z
"""


@pytest.mark.parametrize("name", ["DLRM_MLPerf", "DLRM_default", "copies"])
def test_no_call_of_a_step_is_priced_one_size_at_a_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by learned models nor by formulas: that takes several times as long."""
    graph = parse(COPIES) if name == "copies" else dlrm(name, 2048)
    sizes = [{"B": size} for size in (1, 97, 2048, 2050)]
    alone = [predict(graph, d, dims=s, measured=False) for d in ("v100", "h100") for s in sizes]
    monkeypatch.setattr(grid, "_price_each_size", None)
    found = predict_variants(graph, ["v100", "h100"], sizes).step_time
    assert found.ravel().tolist() == [one.step_time for one in alone]


def test_intervals_are_those_of_predictions() -> None:
    """Of learned kernels and formulas, on one stream and on two, with hosts of their own."""
    sizes = [{"B": 64}, {"B": 4096}]
    for graph in (dlrm("DLRM_default", 2048), parse(TWO_STREAMS)):
        hosts = ["v100", "v100@2x"]
        found = predict_variants(graph, ["v100", "h100"], sizes, hosts=hosts, intervals=True)
        assert found.interval is not None
        for h, host in enumerate(hosts):
            for d, device in enumerate(("v100", "h100")):
                for column, dims in enumerate(sizes):
                    alone = predict(graph, device, host=host, dims=dims, measured=False)
                    assert found.interval[h, d, column] == pytest.approx(alone.interval, rel=1e-9)
    assert predict_variants(graph, ["v100"], sizes).interval is None
    one = predict_variants(graph, ["v100"], sizes, intervals=True)
    assert one.interval is not None and one.interval.shape == (1, 2, 2)


def test_schedules_are_kept_and_say_nothing_of_the_sizes_they_were_made_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Times and intervals are those of a graph that was never asked, to the last digit."""
    graph = replace(dlrm("DLRM_default", 2048), name="asked")
    fresh = replace(graph, name="never asked")
    hosts, sizes = ["v100", "v100@2x"], [{"B": 96}, {"B": 3000}]
    new = predict_variants(fresh, ["v100", "h100"], sizes, hosts=hosts, intervals=True)
    predict_variants(graph, ["t4"], BATCHES, hosts=hosts, intervals=True)
    predict_variants(graph, ["v100", "h100"], BATCHES, hosts=["v100"])
    known = len(variants._cached_schedules(graph))
    monkeypatch.setattr(variants, "_Schedule", None)
    predict_variants(graph, ["v100", "h100"], sizes, hosts=["v100"])
    monkeypatch.undo()
    again = predict_variants(graph, ["v100", "h100"], sizes, hosts=hosts, intervals=True)
    assert (again.step_time == new.step_time).all()
    assert (again.active_time == new.active_time).all()
    assert again.interval is not None and (again.interval == new.interval).all()
    assert known <= len(variants._cached_schedules(graph)) <= variants.MAX_SCHEDULES


def test_few_schedules_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "MAX_SCHEDULES", 1)
    graph = parse(LOOKUPS)
    first = predict_variants(graph, ["v100"], [{"B": 64}], hosts=["v100", "v100@2x"])
    assert len(variants._cached_schedules(graph)) == 1
    again = predict_variants(graph, ["v100"], [{"B": 64}], hosts=["v100", "v100@2x"])
    assert (first.step_time == again.step_time).all()
    assert first.step_time[0, 0, 0] > first.step_time[1, 0, 0]


def test_a_step_without_device_work_has_its_hosts_time() -> None:
    graph = Graph("host", dims={"B": 1}, ops=(Op("autograd.ViewBackward0", thread="backward"),))
    found = predict_variants(graph, ["v100"], [{"B": 1}])
    assert found.step_time[0, 0] == predict(graph).step_time > 0.0
    assert found.active_time[0, 0] == 0.0
    (ends,) = predict_variants(graph, ["v100"], [{"B": 1}], intervals=True).interval[0]
    assert tuple(ends) == pytest.approx(predict(graph).interval)


@pytest.mark.parametrize("points", [12, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_points_are_what_predict_gives_to_the_last_digit(points: int) -> None:
    graph = dlrm("DLRM_default", 2048)
    choose = random.Random(points)
    devices = [*DEVICES, "h100", "p100", "mi300x"]
    sizes = [{"B": choose.randrange(1, 20_000)} for _ in range(max(points // 10, 5))]
    found = predict_variants(graph, devices, sizes)
    for _ in range(points):
        row, column = choose.randrange(len(devices)), choose.randrange(len(sizes))
        alone = predict(graph, device=devices[row], dims=sizes[column])
        assert found.step_time[row, column] == alone.step_time
        assert found.active_time[row, column] == alone.timeline.active_time


def test_hosts_are_an_axis_of_their_own() -> None:
    graph = dlrm("DLRM_default", 2048)
    hosts = ["v100", "v100-32gb-torchrec-profiled"]  # the second's overheads depend on sizes
    found = predict_variants(graph, ["v100"], BATCHES[:2], hosts=hosts)
    assert found.hosts == tuple(hosts) and found.step_time.shape == (2, 1, 2)
    for at, host in enumerate(hosts):
        for column, dims in enumerate(BATCHES[:2]):
            alone = predict(graph, "v100", host=host, dims=dims)
            assert found.step_time[at, 0, column] == alone.step_time


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(IrgraphError, match="no device sheet named 'v1000'"):
        predict_variants(dlrm("DLRM_default", 64), ["v1000"], [{"B": 64}])


LOOKUPS = """
model "m" { format = 1  dims = {B = 2048}  indices = "small=uniform; large*=zipf:1.4" }

device @gpu0 "v100"
param %w1 "small" : f32[100000, 64] in $b1
param %w2 "large" : f32[100000, 64] in $b2
input %i1 : i64[B*10] in $b3
input %i2 : i64[B*10] in $b4
input %o : i64[B] in $b5

%y1, _, _, _ = aten._embedding_bag(%w1, %i1, %o) : f32[B, 64] in $b7, none, none, none
%y2, _, _, _ = aten._embedding_bag(%w2, %i2, %o) : f32[B, 64] in $b8, none, none, none
"""


def test_tables_that_are_looked_up_differently_are_not_taken_for_one_another() -> None:
    graph = parse(LOOKUPS)
    found = predict_variants(graph, ["v100"], [{"B": 512}, {"B": 65536}])
    for column, size in enumerate((512, 65536)):
        alone = predict(graph, dims={"B": size})
        first, second = alone.kernels()
        assert first.time != second.time
        assert found.active_time[0, column] == alone.timeline.active_time


def test_rules_that_are_not_simulated_are_refused() -> None:
    with pytest.raises(IrgraphError, match="'code-2021' predicts one step at a time"):
        predict_variants(parse(LOOKUPS), ["v100"], [{"B": 512}], accounting="code-2021")


LESS = """
model "m" { format = 1  dims = {B = 128} }

device @gpu0 "v100"
input %x : f32[B, 64] in $x
param %w : f32[64, 32] in $w

%s = aten.slice(%x, 0, 64) : f32[B-64, 64] in $x+16384
%y = aten.mm(%s, %w) : f32[B-64, 32] in $y
"""


@pytest.mark.parametrize("size", [32, 63])
def test_a_size_below_what_the_step_takes_off_is_refused(size: int) -> None:
    graph, dims = parse(LESS), {"B": size}
    message = rf"dims: %s would have {size - 64} elements along an axis \(B-64\)"
    with pytest.raises(IrgraphError, match=message):
        predict(graph, dims=dims)
    with pytest.raises(IrgraphError, match=message):
        predict_variants(graph, DEVICES, [{"B": 128}, dims])
    nothing = predict_variants(graph, DEVICES, [{"B": 64}]).step_time
    assert nothing[0, 0] == predict(graph, "v100", dims={"B": 64}).step_time
