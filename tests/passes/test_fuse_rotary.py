"""``fuse-rotary``: rotary embeddings become one kernel, however a program takes the halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from irgraph.api import rewrite
from irgraph.capture.live import capture
from irgraph.execute import compare
from tests.execute.models import sgd

OPERATOR = "irgraph.rotary"


def halves(x: Tensor) -> Tensor:
    size = x.shape[-1] // 2
    first, second = x[..., :size], x[..., size:]
    return torch.cat((-second, first), dim=-1)


def halves_in_the_other_order(x: Tensor) -> Tensor:
    size = x.shape[-1] // 2
    return torch.cat((-x[..., size:], x[..., :size]), dim=-1)


def chunks(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class RotaryStep:
    """A step of a layer whose results are rotated."""

    def __init__(self, rotate: Callable[[Tensor], Tensor], width: int) -> None:
        self.model = nn.Linear(8, width).to("meta")
        self.optimizer: Any = sgd(self.model.parameters())
        self.given, self.angles = torch.rand(4, 8), torch.rand(4, width)
        self.rotate = rotate

    def __call__(self) -> Tensor:
        """Train once and return the loss."""
        self.optimizer.zero_grad()
        x, angles = self.model(self.given.to("meta")), self.angles.to("meta")
        loss = (x * angles.cos() + self.rotate(x) * angles.sin()).pow(3).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


@pytest.mark.parametrize("rotate", [halves, halves_in_the_other_order, chunks])
def test_halves_of_rows_are_rotated(rotate: Callable[[Tensor], Tensor]) -> None:
    before = capture(RotaryStep(rotate, 8), device="meta").graph
    after = rewrite(before, "fuse-rotary").graph
    assert [op.name for op in after.leaves()].count(OPERATOR) == 1
    assert compare(before, after).same


@pytest.mark.parametrize("rotate", [halves, halves_in_the_other_order, chunks])
def test_parts_of_unequal_sizes_are_left_alone(rotate: Callable[[Tensor], Tensor]) -> None:
    graph = capture(RotaryStep(rotate, 7), device="meta").graph
    assert rewrite(graph, "fuse-rotary").graph == graph
