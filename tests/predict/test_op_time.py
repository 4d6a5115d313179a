"""``op.time`` and the figures of sweeps are what ``predict`` says of the same graph."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from irgraph.capture.live import capture_file
from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from irgraph.language.expressions.evaluate import EvaluationError
from irgraph.predict.prediction import Prediction, predict
from irgraph.predict.target import target

EXAMPLES = Path(__file__).parents[2] / "examples"

STEPS = (
    "dlrm.py:default", "dlrm.py:mlperf", "dlrm.py:ddp", "dlrm.py:default(sparse=True)",
    "dlrm.py:infer", "mlp.py:train", "mlp.py:infer", "resnet50.py:small", "inception_v3.py:small",
    "transformer.py:train(layers=2)",
)  # fmt: skip


@cache
def step(name: str) -> Graph:
    any_size = not name.startswith(("resnet50", "inception"))  # theirs take long to capture so
    source = f"{EXAMPLES / name}"
    return capture_file(source, batch=16, device="meta", symbolic=any_size).graph


def device_times(found: Prediction) -> dict[int, float]:
    """Return, by ``id`` of each top-level op, the length of the device work scheduled for it."""
    columns = found.timeline.columns
    work = columns.tasks.has_cause("kernel")
    times: dict[int, float] = defaultdict(float)
    for op, length in zip(columns.tasks.op[work], columns.tasks.length[work], strict=True):
        times[columns.ops[op]] += float(length)
    return times


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if "inception" in n else ()) for n in STEPS]
)
def test_every_op_has_the_time_that_predict_schedules(name: str) -> None:
    graph = step(name)
    asked = target("v100")
    times = device_times(predict(graph, "v100"))
    assert sum(times.values()) > 0
    for op in graph.top_level():
        assert asked.time(graph, op) == pytest.approx(times[op], rel=1e-12), op.name


def test_trained_models_lookups_and_sparse_gradients_count_in_scripts() -> None:
    graph = step("dlrm.py:default(sparse=True)")
    options = {"device": "a100", "indices": "*=zipf:1.1", "dims": {"B": 2048}}
    found = predict(graph, **options)  # type: ignore[arg-type]
    asked = target(**options)  # type: ignore[arg-type]
    whole = found.priced.graph
    for op in whole.top_level():
        expected = sum(kernel.time for kernel in found.priced.of(op))
        assert asked.time(whole, op) == pytest.approx(expected)
    assert "learned" in {kernel.by for kernel in found.kernels()}


def test_a_script_decides_by_the_time_that_predict_reports() -> None:
    graph = step("dlrm.py:default")
    found = predict(graph, dims={"B": 2048})
    (bmm,) = (op for op in found.priced.graph.top_level() if op.name == "aten.bmm")
    time = sum(kernel.time for kernel in found.priced.of(bmm))
    script = (
        f"resize B = 2048 expect 1 aten.bmm where op.time > {time - 0.01}us "
        f"expect no aten.bmm where op.time > {time + 0.01}us"
    )
    run(load_script(script), graph, pricer=target("v100"))


def test_time_is_that_of_the_graph_so_far() -> None:
    long = "aten.relu where op.time > 100us"
    script = f"expect no {long} resize B = 1000000 expect 5 {long}"
    run(load_script(script), step("dlrm.py:default"), pricer=target("v100"))


def test_an_op_within_one_that_is_priced_whole_has_a_time_of_its_own() -> None:
    graph = step("mlp.py:train")
    asked = target("v100")
    linear = next(op for op in graph.top_level() if op.name == "aten.linear")
    (addmm,) = (op for op in linear.walk() if op.name == "aten.addmm")
    (transposed,) = (op for op in linear.walk() if op.name == "aten.t")
    assert asked.time(graph, addmm) == pytest.approx(asked.time(graph, linear))
    assert asked.time(graph, transposed) == 0.0


def test_an_op_of_another_graph_has_no_time() -> None:
    other = step("mlp.py:infer").ops[0]
    with pytest.raises(EvaluationError, match="is not in the model"):
        target("v100").time(step("mlp.py:train"), other)


@pytest.mark.parametrize("device", ["v100", "a100"])
def test_a_sweep_reports_what_predict_says(device: str) -> None:
    graph = step("dlrm.py:default")
    axes = f'sweep b in [512, 4096] {{ target "{device}" resize B = b }}'
    script = f"{axes} report step.time, gpu.active"
    lines = str(run(load_script(script), graph, targets=target).report).splitlines()
    rows = {int(cells[0]): cells[1:] for cells in map(str.split, lines[2:])}
    for batch, cells in rows.items():
        found = predict(graph, device, dims={"B": batch})
        figures = found.step_time, found.timeline.active_time
        assert cells == [f"{figure:.0f}" for figure in figures]
    assert rows.keys() == {512, 4096}
