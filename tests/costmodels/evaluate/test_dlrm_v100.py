"""The paper's eight V100 points: the models are the measured program, the table is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from costmodels.evaluate.comparison import Comparison
from costmodels.evaluate.dlrm_v100 import (
    DEVICE,
    MODELS,
    SOFTWARE,
    VARIANTS_SCORED,
    dlrm,
    evaluate_dlrm_v100,
)
from irgraph.ops.verify import verify
from irgraph.predict.prediction import predict

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return evaluate_dlrm_v100()


@pytest.mark.parametrize("name", MODELS)
def test_models_are_sound_at_every_batch(name: str) -> None:
    for batch in (512, 4096):
        graph = dlrm(name, batch)
        assert graph.dims == {"B": batch}
        assert verify(graph) == []


@pytest.mark.parametrize("name", MODELS)
def test_models_do_what_the_measured_program_did(name: str) -> None:
    names = [op.name for op in dlrm(name, 2048).top_level()]
    assert names.count("irgraph.batched_embedding") == 1
    assert names.count("irgraph.batched_embedding_sgd") == 1
    # one call for all indices, and a pair of host calls at each of seven labels
    assert "aten.select" not in names
    assert names.count("aten.zeros") >= 7
    assert names[:2] == ["aten.zeros", "aten.empty"]
    copied = [op for op in dlrm(name, 2048).top_level() if op.name == "aten.to"][1:3]
    assert {t.dtype for op in copied for t in op.inputs} == {"i32"}


@pytest.mark.parametrize("name", MODELS)
def test_calls_are_those_of_the_published_traces(name: str) -> None:
    graph = dlrm(name, 2048)
    names = [op.name for op in graph.top_level()]
    # of the counts of February 2022: five aten::to that copy; of the sequence of 115 operations:
    # a slice before the index, its gradient after the index's, no lift_fresh
    between = [op for op in graph.top_level() if op.name == "aten.to" and op.outputs]
    assert sum({t.device for t in op.inputs} != {op.outputs[0].device} for op in between) == 5
    assert names[names.index("aten.index") - 1] == "aten.slice"
    assert names[names.index("autograd.IndexBackward0") + 1] == "autograd.SliceBackward0"
    assert "aten.lift_fresh" not in names
    # of the trace of August 2021: two copies and seven kernels of an index's gradient
    priced = predict(graph, DEVICE, host="v100", software=SOFTWARE).priced
    (node,) = (op for op in graph.top_level() if op.name == "autograd.IndexBackward0")
    kinds = [kernel.family for op in node.body for kernel in priced.of(op)]
    assert (kinds.count("copy"), len(kinds)) == (2, 9)


def test_every_point_has_both_times_and_the_papers_errors(comparison: Comparison) -> None:
    step, *_, active = comparison.series
    assert len(step.points) == len(active.points) == 8
    assert list(step.points[0].others) == ["paper", "paper, shared overheads"]
    paper = step.summaries()["paper"]
    assert paper.mape == pytest.approx(0.134, abs=5e-4)
    assert paper.bias == pytest.approx(-0.084, abs=5e-4)


def test_errors_are_smaller_than_the_papers(comparison: Comparison) -> None:
    found = comparison.series[0].summaries()
    assert found["irgraph"].mape < found["paper"].mape
    assert abs(found["irgraph"].bias) < abs(found["paper"].bias)


@pytest.mark.data
def test_the_workloads_own_overheads_stand_beside_the_shared_ones(
    data_dir: Path, comparison: Comparison
) -> None:
    shared, own, _ = comparison.series
    assert [p.workload for p in own.points] == [p.workload for p in shared.points]
    assert own.summaries()["irgraph"].mape < shared.summaries()["irgraph"].mape


def test_without_measurements_only_shared_overheads_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("IRGRAPH_DATA", raising=False)
    assert len(evaluate_dlrm_v100().series) == 2


def test_what_limits_the_figures_is_said(comparison: Comparison) -> None:
    notes = " ".join(comparison.notes)
    assert "digitised" in notes
    assert "derived" in notes
    assert f"scored on these points: {len(VARIANTS_SCORED)}" in notes
    assert comparison.settings["ops no model knows"] == "none"


@pytest.mark.long
@pytest.mark.parametrize(("name", "file"), MODELS.items())
def test_shipped_models_are_what_the_example_captures(name: str, file: str) -> None:
    import torch

    from irgraph.capture.live import capture_file
    from irgraph.text import parse

    text = (ROOT / "costmodels/evaluate/data" / file).read_text()
    shipped = parse(re.sub(r'torch = ".+?"', f'torch = "{torch.__version__}"', text, count=1))
    preset = file.removeprefix("dlrm_").removesuffix(".ir")
    found = capture_file(f"{ROOT}/examples/dlrm.py:{preset}", batch=2048)
    assert found.graph == shipped
