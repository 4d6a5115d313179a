"""What a step leaves for its caller is recorded, whatever objects hold it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from irgraph.anonymise.models import anonymous_graph
from irgraph.capture.common.symbolic import with_symbolic_batch
from irgraph.capture.live import capture
from irgraph.ir.graph import Graph
from irgraph.text import parse, print_graph

X = torch.rand(3, 4)


class Doubled(torch.autograd.Function):
    """An operator's own autograd, which calls it once more below autograd."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.irgraph_test.doubled(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.ops.irgraph_test.doubled(grad)


def test_a_result_of_an_operator_whose_autograd_is_python_s_own_is_returned() -> None:
    library = torch.library.Library("irgraph_test", "FRAGMENT")
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", lambda x: x * 2, "CompositeExplicitAutograd")
    library.impl("doubled", Doubled.apply, "Autograd")
    model, given = layer("meta"), torch.ones(3, 4, device="meta")

    def step() -> torch.Tensor:
        made = torch.ops.irgraph_test.doubled(model(given))
        made.backward(given)
        return made.detach()

    graph = capture(step, device="meta").graph
    (op,) = (
        op for op in graph.walk() if op.name == "irgraph_test.doubled" and op.phase == "forward"
    )
    (kept,) = graph.returned or ()
    assert kept.buffer == op.outputs[0].buffer


def returned(step: Callable[[], object], device: str = "meta") -> list[str] | None:
    graph = capture(step, device=device).graph
    assert parse(print_graph(graph)) == graph
    return None if graph.returned is None else [tensor.name for tensor in graph.returned]


def layer(device: str = "meta") -> nn.Linear:
    with torch.device(device):
        return nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("form", "names"),
    [
        (lambda h, y: h, ["linear1"]),
        (lambda h, y: (y, h), ["relu1", "linear1"]),
        (lambda h, y: {"a": [h, {"b": y}], "c": 3.0}, ["linear1", "relu1"]),
        (lambda h, y: SimpleNamespace(logits=y, loss=None), ["relu1"]),
        (lambda h, y: (h, h), ["linear1", "linear1"]),
        (lambda h, y: None, []),
        (lambda h, y: (h.detach(), torch.ones(2)), ["detach1", "ones1"]),
        (lambda h, y: list(h.chunk(2)), ["chunk1", "chunk1_1"]),
    ],
)
def test_returned_tensors_are_found_in_any_object(
    form: Callable[[Any, Any], object], names: list[str]
) -> None:
    net = layer()

    def step() -> object:
        h = net(X.to("meta"))
        return form(h, h.relu())

    assert returned(step) == names


def test_parameters_that_were_used_are_returned_as_themselves() -> None:
    net = layer()
    other = layer()

    def step() -> object:
        net(X.to("meta"))
        return net.weight, other.weight

    assert returned(step) == ["net_weight"]


class Recurrent(nn.Module):
    """Keeps its state as a plain attribute, as stateful models do."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)
        self.state = torch.zeros(3, 4, device="meta")

    def forward(self, x: Any) -> Any:
        self.state = self.cell(x + self.state).detach()
        return self.state.sum()


def test_what_modules_lists_and_objects_keep_is_left_for_the_caller_too() -> None:
    with torch.device("meta"):
        net = Recurrent()
    losses: list[Any] = []

    def step() -> object:
        losses.append(net(X.to("meta")).neg())
        return None

    assert returned(step) == ["neg1", "detach1"]


def test_gradients_and_temporary_values_are_not() -> None:
    net = layer("cpu")

    def step() -> object:
        net.zero_grad()
        hidden = net(X).relu()
        loss = hidden.sum()
        loss.backward()
        return loss.detach()

    assert returned(step, "cpu") == ["detach3"]


def test_a_view_that_no_call_made_makes_it_unknown() -> None:
    base = torch.zeros(8, device="meta")
    view = base[2:4]

    def step() -> object:
        base.add_(1)
        return view

    captured = capture(step)
    assert captured.graph.returned is None
    note = "what the step returns is unknown: no call made its tensor [2]"
    assert note in captured.notes


def at(batch: int) -> Any:
    net = layer()
    data = torch.rand(batch, 4)
    return capture(lambda: net(data.to("meta")).sum(1))


def test_what_is_returned_follows_the_batch_size() -> None:
    graph: Graph = with_symbolic_batch(at(8), 8, at, (4, 16)).graph
    assert print_graph(graph).endswith("return %sum1\n")
    assert graph.returned is not None
    assert str(graph.returned[0].shape[0]) == "B"


def test_an_anonymous_model_returns_the_same() -> None:
    graph = anonymous_graph(at(8).graph)
    assert parse(print_graph(graph)) == graph
    assert graph.returned == tuple(graph.by_name[t.name] for t in graph.returned or ())
