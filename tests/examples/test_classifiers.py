"""The image classifiers are the published architectures, captured as one training step each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch

from costmodels.devices.library import load_device
from costmodels.pricing.price import price
from irgraph.capture.live import capture_file

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODULES = ("classifier", "resnet50", "inception_v3")


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "parameters", "convolutions"),
    [
        ("resnet50", 25_557_032, 53),
        ("inception_v3", 27_161_264, 96),
    ],
)
def test_sizes_are_the_published_ones(name: str, parameters: int, convolutions: int) -> None:
    model = import_module(name).train(2, "meta").model
    convs = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
    assert (sum(p.numel() for p in model.parameters()), len(convs)) == (parameters, convolutions)


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("resnet50", {"conv1", "layer1.0.downsample.0", "layer4.2.bn3", "fc"}),
        (
            "inception_v3",
            {"Conv2d_1a_3x3.conv", "Mixed_7c.branch3x3dbl_3b.bn", "AuxLogits.conv1.conv"},
        ),
    ],
)
def test_modules_are_named_as_in_torchvision(name: str, modules: set[str]) -> None:
    model = import_module(name).train(2, "meta").model
    assert modules <= dict(model.named_modules()).keys()


@pytest.mark.parametrize("name", ["resnet50", "inception_v3"])
def test_it_learns_the_images_it_sees(name: str) -> None:
    torch.manual_seed(0)
    step = import_module(name).small(2, "cpu")
    losses = [step().item() for _ in range(4)]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "inception_v3"])
def test_it_is_captured_for_any_batch_and_every_kernel_has_a_price(name: str) -> None:
    graph = capture_file(f"{EXAMPLES / name}.py:small", batch=8).graph
    first = next(op for op in graph.walk() if op.base == "convolution")
    assert [str(size) for size in first.inputs[0].shape][:2] == ["B", "3"]
    assert price(graph, load_device("v100")).unknown == ()


def test_the_auxiliary_head_counts_as_much_as_it_is_told() -> None:
    train = import_module("inception_v3").train
    trained = {}
    for aux in (0.4, 0.0):
        step = train(2, "meta", aux=aux)
        step()
        trained[aux] = step.model.AuxLogits.fc.weight.grad is not None
    assert trained == {0.4: True, 0.0: False}
