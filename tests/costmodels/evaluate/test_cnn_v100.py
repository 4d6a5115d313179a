"""The measured image classifiers: models that ship are the examples, as the program timed them."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.evaluate.cnn_v100 import MODELS, cnn, measured_points
from costmodels.evaluate.measured_program import as_benchmarked
from irgraph.ir.graph import Graph
from irgraph.ops.verify import verify

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize("name", MODELS)
def test_models_are_sound_at_every_measured_batch(name: str) -> None:
    for row in measured_points():
        if row["model"] == name:
            graph = cnn(name, int(row["batch"]))
            assert graph.dims == {"B": int(row["batch"])}
            assert verify(graph) == []


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("resnet50", 53, 53),
        ("inception_v3", 96, 94),
    ],
)
def test_calls_are_those_that_were_published(name: str, forward: int, backward: int) -> None:
    names = [op.name for op in cnn(name, 32).top_level()]
    assert names.count("aten.conv2d") == forward
    assert names.count("autograd.ConvolutionBackward0") == backward
    assert not any(called in names for called in ("aten.to", "aten.zero_"))


@pytest.mark.parametrize("name", MODELS)
def test_the_device_is_waited_for_behind_each_part(name: str) -> None:
    names = [op.name for op in cnn(name, 16).ops]
    places = [number for number, name in enumerate(names) if name == "sync.device"]
    before_loss, before_update, end = places
    assert names[before_loss + 1] == "aten.cross_entropy_loss"
    assert names[before_update + 1].startswith("Optimizer.step")
    assert end == len(names) - 1


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("resnet50", "train"),
        ("inception_v3", "train(aux=0.0)"),
    ],
)
@pytest.mark.slow
def test_shipped_models_are_what_the_examples_are_captured_as(name: str, preset: str) -> None:
    from irgraph.capture.live import capture_file

    target = f"{EXAMPLES / name}.py:{preset}"
    captured = capture_file(target, batch=32, symbolic=False).graph
    assert calls(as_benchmarked(captured)) == calls(cnn(name, 32))


def calls(graph: Graph) -> list[tuple[str, str, list[tuple[str, tuple[int, ...]]]]]:
    """Return every call with the types and sizes of its tensors."""
    return [
        (op.name, op.module, [(t.dtype, tuple(map(int, t.shape))) for t in op.inputs + op.outputs])
        for op in graph.walk()
    ]
