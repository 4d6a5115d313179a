"""Where CUDA programs may keep operands: step counts on the device, lengths on the host."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch

from costmodels.devices.library import load_device
from costmodels.pricing.price import price
from irgraph.capture.emulate.patches import optimizers_on_meta
from irgraph.capture.live import capture
from irgraph.execute import execute
from irgraph.ir.graph import Graph
from irgraph.ops.verify import verify

F = torch.nn.functional


def stepping(kind: str, device: str, **options: Any) -> Callable[[], object]:
    """Return a step of a layer whose values are the same on each device that has some."""
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(4, 3).to(device), torch.rand(2, 4)
    optimizer = getattr(torch.optim, kind)(layer.parameters(), **options)

    def step() -> None:
        optimizer.zero_grad()
        layer(x.to(device)).pow(2).sum().backward()
        optimizer.step()

    step.model = layer  # type: ignore[attr-defined]
    return step


def started(graph: Graph, step: Any) -> dict[str, torch.Tensor]:
    """Return what a first step starts from: parameters by their labels, empty state, the data."""
    labelled = dict(step.model.named_parameters())
    found = {}
    for declared in graph.tensors:
        shape = tuple(map(int, declared.tensor.shape))
        if declared.label in labelled:
            found[declared.tensor.name] = labelled[declared.label].detach().clone()
        elif declared.role == "state":
            found[declared.tensor.name] = torch.zeros(shape)
        else:
            torch.manual_seed(0)
            torch.nn.Linear(4, 3)
            found[declared.tensor.name] = torch.rand(shape)
    return found


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "Adadelta", "RMSprop", "Adamax"])
def test_capturable_optimizers_update_as_others_do(kind: str, foreach: bool) -> None:
    options = {"capturable": True, "foreach": foreach}
    graph = capture(stepping(kind, "meta", **options)).graph
    assert verify(graph) == []
    assert price(graph, load_device("a100")).unknown == ()
    # the host reads no step count, as it must not in a CUDA graph
    assert not [op for op in graph.walk() if op.name == "aten.item"]
    plain: Any = stepping(kind, "cpu")
    values = started(graph, plain)
    plain()
    left = execute(graph, values)
    for declared in graph.tensors:
        if declared.role == "param":
            mine, theirs = left[declared.tensor.name], plain.model.get_parameter(declared.label)
            torch.testing.assert_close(mine, theirs.detach(), rtol=1e-5, atol=1e-7)


def test_optimizers_can_be_scripted_meanwhile() -> None:
    # as the import of ``torch.distributed.optim`` does, which a captured program may have
    from torch.optim.optimizer import _get_capturable_supported_devices as usual

    adam = import_module("torch.optim.adam")
    with optimizers_on_meta():
        answer = adam._get_capturable_supported_devices
        scripted = torch.jit.script(answer)
    assert set(scripted()) == {*usual(), "meta"}
    assert adam._get_capturable_supported_devices is usual


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_lengths_of_ctc_may_lie_on_the_host(reduction: str, zero_infinity: bool) -> None:
    given, wanted = torch.tensor([12, 9]), torch.tensor([4, 3])
    options: Any = {"reduction": reduction, "zero_infinity": zero_infinity}

    def make(device: str) -> Callable[[], Any]:
        torch.manual_seed(0)
        scores = torch.rand(12, 2, 6)
        targets = torch.tensor([[1, 2, 3, 4], [5, 4, 3, 2]])
        here = scores.to(device).requires_grad_()

        def step() -> Any:
            found = here.log_softmax(2)
            loss = F.ctc_loss(found, targets.to(device), given, wanted, **options)
            (gradient,) = torch.autograd.grad(loss, here)
            return loss.detach(), gradient

        return step

    graph = capture(make("meta")).graph
    assert verify(graph) == []
    torch.manual_seed(0)
    scores, targets = torch.rand(12, 2, 6), torch.tensor([[1, 2, 3, 4], [5, 4, 3, 2]])
    by_shape = {(12, 2, 6): scores, (2, 4): targets}
    lengths = [given, wanted]
    values = {}
    for declared in graph.tensors:
        shape = tuple(map(int, declared.tensor.shape))
        values[declared.tensor.name] = by_shape[shape] if len(shape) > 1 else lengths.pop(0)
    left = execute(graph, values)
    assert graph.returned is not None
    for tensor, theirs in zip(graph.returned, make("cpu")(), strict=True):
        torch.testing.assert_close(left[tensor.name], theirs)
