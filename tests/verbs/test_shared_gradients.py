"""``and backward`` on tensors whose gradient has parts from other ops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from irgraph.capture.live import capture
from irgraph.execute import compare
from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from tests.execute.models import sgd

SCRIPT = """replace many { %p = aten.mul(%x, %a)  %q = aten.mul(%x, %b)  %y = aten.add(%p, %q) }
  with { %p = aten.mul(%x, %a)  %q = aten.mul(%x, %b)  %y = aten.sub(%p, %q) } and backward
"""


class Gates(nn.Module):
    """A layer whose results are scaled twice, and perhaps used elsewhere."""

    def __init__(self, minus: bool, residual: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.first, self.second = (nn.Parameter(torch.rand(8)) for _ in range(2))
        self.combine = torch.sub if minus else torch.add
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, 8] for the same."""
        x = self.layer(x).sin()
        combined = self.combine(x * self.first, x * self.second)
        return x + combined if self.residual else combined


class GateStep:
    """A step of gates."""

    def __init__(self, minus: bool, residual: bool) -> None:
        self.model = Gates(minus, residual).to("meta")
        self.optimizer: Any = sgd(self.model.parameters())

    def __call__(self) -> Tensor:
        """Train once and return the loss."""
        self.optimizer.zero_grad()
        loss = self.model(torch.zeros(4, 8, device="meta")).pow(3).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def step(minus: bool, residual: bool) -> Graph:
    return capture(GateStep(minus, residual), device="meta").graph


def test_a_gradient_of_two_parts_is_replaced() -> None:
    after = run(load_script(SCRIPT), step(minus=False, residual=False)).graph
    result = compare(after, step(minus=True, residual=False))
    assert all(one.same for one in result.compared if one.kind in ("param", "returned"))


def test_a_gradient_with_a_part_between_is_refused() -> None:
    """The gradients of the factors match; the one of their operand would not change."""
    graph = step(minus=False, residual=True)
    outcome = run(load_script(SCRIPT), graph)
    assert outcome.graph == graph
    assert "is not the sum that autograd derives" in str(outcome.report)
