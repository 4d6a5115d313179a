"""The critical path explains every recorded step, and every step of the examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.tree import build_tree
from irgraph.evaluate.dlrm_v100 import MODELS, measured_model
from irgraph.prediction import predict
from irgraph.schedule.critical_path import critical_path
from irgraph.schedule.replay import Lengths, replayer
from irgraph.schedule.timeline import Timeline

NANOSECOND = 1e-3

REPLAYED = [
    "dlrm_8xV100/kineto_rank0",
    "dlrm_8xV100/kineto_rank7",
    "dlrm_4xV100_overlap/kineto_rank0",
    "mlp_RTX2080Ti/kineto",
    "resnet18_RTX2080Ti/kineto",
    "resnet50_V100/kineto_workers0",
    "resnet50_V100/kineto_workers4",
    "formats/kineto_alexnet_A100",
    "formats/kineto_amd_mi250",
    "formats/kineto_event_sync_A100",
    "formats/kineto_event_sync_multi_stream_A100",
    "formats/kineto_resnet50_ddp_A100",
    "formats/kineto_triton_A100",
]


def explained(timeline: Timeline) -> None:
    path = critical_path(timeline)
    for part in (path.by_cause(), path.by_op(), path.by_module()):
        assert sum(part.values()) == pytest.approx(timeline.step_time, abs=NANOSECOND)
    ends = [0.0, *(i.end for i in path.intervals)]
    assert [i.start for i in path.intervals] == pytest.approx(ends[:-1], abs=NANOSECOND)


@pytest.mark.data
@pytest.mark.parametrize("name", REPLAYED)
def test_causes_add_up_to_recorded_steps(name: str, data_dir: Path) -> None:
    tree = build_tree(read_kineto(data_dir / f"traces/{name}.json.gz"))
    complete = [step for step in tree.steps if step.complete]
    if not complete:
        pytest.skip(f"{name} has no complete step")
    one = replayer(tree)
    for step in complete[:2]:
        explained(one.replay(step, Lengths()).timeline)


@pytest.mark.parametrize("name", MODELS)
def test_causes_add_up_to_the_shipped_models_steps(name: str) -> None:
    explained(predict(measured_model(name)).timeline)


@pytest.mark.parametrize("target", ["mlp.py:train", "mlp.py:infer", "dlrm.py:default"])
def test_causes_add_up_to_the_examples_steps(target: str) -> None:
    pytest.importorskip("torch")
    from irgraph.capture.live import capture_file

    root = Path(__file__).resolve().parents[2]
    found = capture_file(f"{root}/examples/{target}", batch=64, symbolic=False)
    explained(predict(found.graph).timeline)
