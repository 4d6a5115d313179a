"""The critical path explains every recorded step, and every step of the examples."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from costmodels.evaluate import cnn_v100
from costmodels.evaluate.dlrm_v100 import MODELS, measured_model
from irgraph.capture.execution_trace import lower_execution_trace
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.predict.prediction import predict
from irgraph.replay.host_times import HostTimes
from irgraph.replay.replay import build_replayer
from irgraph.schedule.critical_path import critical_path
from irgraph.schedule.timeline import Timeline

NANOSECOND = 1e-3

FOLDER = Path(__file__).resolve().parents[2] / "examples"

TRACES = [
    *(f"dlrm_8xV100/kineto_rank{rank}" for rank in range(8)),
    *(f"dlrm_4xV100_overlap/kineto_rank{rank}" for rank in range(4)),
    "mlp_RTX2080Ti/kineto",
    "resnet18_RTX2080Ti/kineto",
    "resnet50_V100/kineto_workers0",
    "resnet50_V100/kineto_workers4",
    "simple_add_A100/kineto",
    "formats/kineto_alexnet_A100",
    "formats/kineto_amd_mi250",
    "formats/kineto_cpu_only",
    "formats/kineto_event_sync_A100",
    "formats/kineto_event_sync_multi_stream_A100",
    "formats/kineto_rank_non_gpu",
    "formats/kineto_resnet50_ddp_A100",
    "formats/kineto_triton_A100",
]
"""Every Kineto trace of the measurements: one that is missing here fails a test."""

EXECUTION_TRACES = [
    *(f"dlrm_8xV100/et_rank{rank}" for rank in range(8)),
    "mlp_RTX2080Ti/et",
    "resnet18_RTX2080Ti/et",
    "simple_add_A100/et",
    "formats/et_1.0.3_resnet50_1gpu",
    "formats/et_1.1.0_resnet50_2gpu",
    "formats/et_1.1.1_resnet50_1gpu",
    "formats/et_1.1.1_torch_compile",
]
"""Every execution trace of the measurements."""

EXAMPLES = [
    "mlp.py:train",
    "mlp.py:infer",
    "quantize.py:infer",
    "dlrm.py:default",
    "dlrm.py:mlperf(max_rows=1000)",
    "dlrm.py:ddp(sparse=True)",
    "transformer.py:train",
    "llama.py:train(layers=1, width=16, heads=4, groups=2, hidden=24, length=6, words=31)",
    "vit.py:small",
    "resnet50.py:small",
    "inception_v3.py:small",
    "several_gpus.py:ddp",
    "several_gpus.py:fsdp",
    "several_gpus.py:tensor_parallel",
    "experts.py:train",
    "ragged.py:train(max_rows=1000)",
]
"""A step of every example, and of every kind of step that it has."""


def explained(timeline: Timeline) -> None:
    path = critical_path(timeline)
    for part in (path.by_cause(), path.by_op(), path.by_module()):
        assert sum(part.values()) == pytest.approx(timeline.step_time, abs=NANOSECOND)
    ends = [0.0, *(i.end for i in path.intervals)]
    assert [i.start for i in path.intervals] == pytest.approx(ends[:-1], abs=NANOSECOND)


@pytest.mark.data
@pytest.mark.parametrize("name", TRACES)
def test_causes_add_up_to_recorded_steps(name: str, data_dir: Path) -> None:
    tree = build_tree(read_kineto(data_dir / f"traces/{name}.json.gz"))
    complete = [step for step in tree.steps if step.complete]
    one = build_replayer(tree)
    for step in {id(s): s for s in (complete[0], complete[-1])}.values():
        for lengths in (HostTimes(), HostTimes(one.samples())):
            explained(one.replay(step, lengths).timeline)


@pytest.mark.data
@pytest.mark.parametrize("name", EXECUTION_TRACES)
def test_causes_add_up_to_predicted_steps_of_execution_traces(name: str, data_dir: Path) -> None:
    lowered = lower_execution_trace(data_dir / f"traces/{name}.json.gz")
    explained(predict(lowered.graph).timeline)


@pytest.mark.data
def test_no_trace_is_left_out(data_dir: Path) -> None:
    folder = data_dir / "traces"
    found = (path.relative_to(folder) for path in folder.rglob("*.json.gz"))
    assert {str(path).removesuffix(".json.gz") for path in found} == {*TRACES, *EXECUTION_TRACES}


@pytest.mark.parametrize("name", MODELS)
def test_causes_add_up_to_the_shipped_models_steps(name: str) -> None:
    explained(predict(measured_model(name)).timeline)


@pytest.mark.parametrize("name", cnn_v100.MODELS)
def test_causes_add_up_to_the_shipped_classifiers_steps(name: str) -> None:
    explained(predict(cnn_v100.cnn(name, 16)).timeline)


@pytest.mark.parametrize(
    "target",
    [pytest.param(t, marks=pytest.mark.slow if "inception" in t else ()) for t in EXAMPLES],
)
def test_causes_add_up_to_the_examples_steps(target: str) -> None:
    from irgraph.capture.live import capture_file

    ranks = 8 if target.startswith("several_gpus") else None
    found = capture_file(f"{FOLDER}/{target}", batch=64, symbolic=False, ranks=ranks)
    explained(predict(found.graph).timeline)


def test_no_example_is_left_out() -> None:
    shown = {target.partition(":")[0] for target in EXAMPLES}
    assert shown == {path.name for path in FOLDER.glob("*.py") if makes_steps(path)}


def makes_steps(path: Path) -> bool:
    """Tell whether a file has a function of (batch, device)."""
    functions = (f for f in ast.parse(path.read_text()).body if isinstance(f, ast.FunctionDef))
    return any([a.arg for a in f.args.args[:2]] == ["batch", "device"] for f in functions)
