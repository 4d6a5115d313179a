"""Loading of batches in the schedule: on the host, or beside the step."""

from __future__ import annotations

import pytest

import irgraph
from irgraph.ir.graph import Graph
from irgraph.ir.loading import LOAD, Loading, batch_loads, read_loading, with_loading
from irgraph.ir.resize import with_dims
from irgraph.predict.prediction import predict
from irgraph.predict.variants import predict_variants
from irgraph.text import IrgraphError, parse, print_graph

STEP = parse("""model "step" { format = 2  dims = {B = 2048} }

device @gpu0 "v100"
param %w : f32[4096, 4096] in $w
input %x : f32[B, 4096] in $x

%y = aten.mm(%x, %w) : f32[B, 4096] in $y
%z = aten.mm(%y, %w) : f32[B, 4096] in $z
return %z
""")
"""A step whose device takes several milliseconds, and its host some tens of microseconds."""

SYNCED = "sync.device()\nreturn"


def step_time(graph: Graph, loader: str | None = None) -> float:
    return predict(graph, device="v100", loader=loader).step_time


def test_the_host_loads_while_the_device_works() -> None:
    device = step_time(STEP)
    host = predict(STEP, device="v100").timeline.host_time
    assert host < 0.1 * device
    assert step_time(STEP, "1us") == device
    longer = 2 * device
    assert step_time(STEP, f"{longer}us") == pytest.approx(host + longer, rel=1e-3)


def test_after_a_wait_the_device_is_idle() -> None:
    synced = parse(print_graph(STEP).replace("return", SYNCED))
    alone = step_time(synced)
    assert step_time(synced, "3ms") == pytest.approx(alone + 3000.0, rel=1e-3)
    prediction = predict(synced, device="v100", loader="3ms")
    assert prediction.path.by_cause()["loader"] == pytest.approx(3000.0, rel=1e-3)
    saved = {row["name"]: row["saved_us"] for row in prediction.summary()["sensitivity"]["groups"]}
    assert saved["loader"] == pytest.approx(1500.0, rel=1e-3)


def test_workers_hide_what_the_step_takes() -> None:
    alone = step_time(STEP)
    assert step_time(STEP, f"{3.9 * alone}us/4") == alone
    assert step_time(STEP, f"{8 * alone}us/4") == pytest.approx(2 * alone, rel=1e-3)
    bound = predict(STEP, device="v100", loader=f"{8 * alone}us/4")
    assert any(line.startswith("input-bound: 100% ") for line in bound.warnings)
    assert "4 workers" in " ".join(bound.warnings)


def test_only_loading_that_lengthens_the_step_is_mentioned() -> None:
    assert not any("loading" in line for line in predict(STEP, "v100", loader="100us").warnings)


def test_the_time_follows_the_batch() -> None:
    loading = with_loading(STEP, Loading(4000.0))
    (load,) = batch_loads(with_dims(loading, {"B": 4096}))
    assert load.attributes["nanoseconds"] == pytest.approx(8_000_000, rel=1e-3)
    # a time that is specified with a size is the time at that size
    (load,) = batch_loads(predict(STEP, "v100", dims={"B": 4096}, loader="4ms").priced.graph)
    assert load.attributes["nanoseconds"] == pytest.approx(4_000_000, rel=1e-3)


def test_variants_agree_with_single_predictions() -> None:
    loading = with_loading(STEP, Loading(20_000.0, 2))
    sizes = [{"B": 1024}, {"B": 2048}, {"B": 4096}]
    grid = predict_variants(loading, ["v100", "a100"], sizes)
    for column, dims in enumerate(sizes):
        for row, device in enumerate(("v100", "a100")):
            single = predict(loading, device=device, dims=dims)
            assert grid.step_time[row, column] == single.step_time
            assert grid.active_time[row, column] == single.timeline.active_time


def test_algorithm_1_begins_when_the_batch_exists() -> None:
    alone = predict(STEP, device="v100", accounting="paper").step_time
    assert predict(STEP, "v100", accounting="paper", loader="9ms").step_time == alone


@pytest.mark.parametrize("text", ["12", "12ms/", "12ms/x", "/4", "-1ms", "12ms/4/2", ""])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(IrgraphError, match="--loader: not a time"):
        read_loading(text)


def test_loading_is_no_dead_code_and_no_barrier() -> None:
    loading = with_loading(STEP, Loading(4000.0))
    assert [op.name for op in loading.ops][-1] == LOAD
    with pytest.raises(IrgraphError):
        irgraph.run_script(f"remove {LOAD}", loading)
