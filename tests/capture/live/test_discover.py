"""Finding the modules of a step that does not name its model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from irgraph.capture.live import capture
from irgraph.capture.live.discover import model_of

nn = torch.nn

WIDE = nn.Linear(4, 4, device="meta")


def labels(step: Callable[[], object]) -> list[str]:
    model = model_of(step)
    return [] if model is None else [name for name, _ in model.named_parameters()]


def test_the_step_names_its_model() -> None:
    other = nn.Linear(4, 4)

    def step() -> None:
        other(torch.ones(4))

    step.model = nn.ModuleDict({"mine": nn.Linear(1, 1, bias=False)})  # type: ignore[attr-defined]
    assert labels(step) == ["mine.weight"]


def test_one_module_of_a_closure_is_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    first = model[0]
    assert labels(lambda: (model, first)) == ["0.weight", "0.bias"]


def test_several_modules_keep_the_names_they_have_there() -> None:
    body, head = nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False)
    scale = nn.Parameter(torch.ones(()))
    assert labels(lambda: head(body(scale))) == ["scale", "body.weight", "head.weight"]


class Trainer:
    """Holds what a step uses, as programs do."""

    def __init__(self) -> None:
        self.parts = {"net": nn.Linear(4, 4, bias=False)}
        self.optimizer = torch.optim.SGD(self.parts["net"].parameters(), lr=0.1)

    def train(self, times: int = 1) -> Any:
        return self.parts["net"]

    __call__ = train


@pytest.mark.parametrize(
    "step",
    [Trainer(), Trainer().train, functools.partial(Trainer().train, times=2)],
    ids=["callable", "method", "partial"],
)
def test_modules_of_the_steps_object_are_found(step: Callable[[], object]) -> None:
    assert labels(step) == ["weight"]


def test_modules_among_globals_are_found() -> None:
    assert labels(lambda: WIDE(torch.ones(4))) == ["weight", "bias"]


def test_a_step_without_modules_has_no_model() -> None:
    x = torch.ones(3)
    assert model_of(lambda: x + 1) is None


def test_a_variable_that_is_not_set_does_no_harm() -> None:
    def make() -> Callable[[], object]:
        def step() -> object:
            return later

        if model_of(step) is None:
            later = 3
        return step

    assert make()


def test_names_and_module_paths_appear_in_the_capture() -> None:
    encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    decoder = nn.Linear(4, 4)
    for module in (encoder, decoder):
        module.to("meta")
    x = torch.empty(2, 4, device="meta")
    graph = capture(lambda: decoder(encoder(x)).sum().backward()).graph
    params = [d.label for d in graph.tensors if d.role == "param"]
    assert params == ["encoder.0.weight", "encoder.0.bias", "decoder.weight", "decoder.bias"]
    linears = [op.module for op in graph.ops if op.name == "aten.linear"]
    assert linears == ["encoder.0", "decoder"]


def test_a_model_that_is_no_module_is_passed_over() -> None:
    def step() -> object:
        return WIDE(torch.ones(4))

    step.model = "resnet50"  # type: ignore[attr-defined]
    assert labels(step) == ["weight", "bias"]
