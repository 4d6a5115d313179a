"""``fuse-attention``: attention spelt out becomes the op that torch has for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from irgraph.api import rewrite
from irgraph.capture.live import capture
from irgraph.execute import compare
from irgraph.ir.graph import Graph
from irgraph.ops.verify import verify
from tests.execute.models import Eager, Step, eager_step, sgd

FUSED = "aten._scaled_dot_product_efficient_attention"


def graph_of(step: Callable[[], Any]) -> Graph:
    return capture(step, device="meta").graph


def kernels(graph: Graph) -> Counter[str]:
    return Counter(op.name for op in graph.leaves())


class Fused(Eager):
    """The same with torch's op."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, T, width] for the same."""
        batch, length, width = x.shape
        query, key, value = (
            layer(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, scale=0.5)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


@pytest.mark.long
def test_both_products_and_the_softmax_become_one_op_forward_and_backward() -> None:
    before = graph_of(eager_step(4, "meta"))
    after = rewrite(before, "fuse-attention").graph
    assert verify(after) == []
    made = kernels(after)
    assert (made[FUSED], made[f"{FUSED}_backward"]) == (2, 2)
    assert not {"aten._softmax", "aten._softmax_backward_data", "aten.bmm"} & made.keys()
    result = compare(before, after)
    assert result.same, str(result)


@pytest.mark.long
def test_it_is_the_program_with_the_op() -> None:
    before, meant = (
        graph_of(Step(nn.Sequential(kind(8, 2, False), nn.Flatten()).to("meta"), data, sgd))
        for kind in (Eager, Fused)
    )
    after = rewrite(before, "fuse-attention").graph
    assert kernels(after) == kernels(meant)
    assert compare(after, meant).exact


data = (torch.rand(4, 3, 8), torch.arange(4) % 5)


class Watched(Eager):
    """Hands on the weights, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, T, width] for the same."""
        scores = (self.query(x) @ self.key(x).transpose(-2, -1)) * 0.5
        weights = scores.softmax(-1)
        return weights @ self.value(x) + weights.sum(-1, keepdim=True)


class Across(Eager):
    """Normalises over the other axis."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, T, width] for the same."""
        scores = (self.query(x) @ self.key(x).transpose(-2, -1)) * 0.5
        return scores.softmax(-2) @ self.value(x)


class Softly(Eager):
    """Fills scores with what is not far below them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, T, width] for the same."""
        scores = (self.query(x) @ self.key(x).transpose(-2, -1)) / 2
        return scores.masked_fill(x > 0.5, -1.0).softmax(-1) @ self.value(x)


class Finite(Eager):
    """Fills scores with the least of finite numbers: a row filled as a whole sees all words."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, T, width] for the same."""
        scores = (self.query(x) @ self.key(x).transpose(-2, -1)) * 0.5
        least = torch.finfo(x.dtype).min
        return scores.masked_fill(x > 0.5, least).softmax(-1) @ self.value(x)


@pytest.mark.parametrize("kind", [Watched, Across, Softly, Finite])
def test_what_is_not_that_op_is_left_alone(kind: type[Eager]) -> None:
    model = nn.Sequential(kind(3, 1, False), nn.Flatten()).to("meta")
    graph = graph_of(Step(model, (torch.rand(4, 3, 3), torch.arange(4) % 5), sgd))
    assert rewrite(graph, "fuse-attention").graph == graph


def scores_of(model: Eager, x: torch.Tensor) -> torch.Tensor:
    """Return scores [B, 1, T, T] behind a product, as most models write them."""
    query, key = model.query(x)[:, None], model.key(x)[:, None]
    return query @ key.transpose(-2, -1) * 0.5


class Filled(Eager):
    """Fills the scores of later words."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, T, width] for the same."""
        later = torch.ones(3, 3, dtype=torch.bool, device=x.device).triu(1)
        weights = scores_of(self, x).masked_fill(later, float("-inf")).softmax(-1)
        return (weights @ self.value(x)[:, None])[:, 0]


class FilledInF32(Filled):
    """The same, and back to the type of values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, T, width] for the same."""
        later = torch.ones(3, 3, dtype=torch.bool, device=x.device).triu(1)
        value = self.value(x)[:, None]
        weights = scores_of(self, x).masked_fill(later, float("-inf")).softmax(-1)
        return (weights.to(value.dtype) @ value)[:, 0]


class InF32(Eager):
    """Sees all words."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, T, width] for the same."""
        value = self.value(x)[:, None]
        return (scores_of(self, x).softmax(-1).to(value.dtype) @ value)[:, 0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "mixed"),
    [
        (Filled, None),
        (FilledInF32, torch.bfloat16),
        (InF32, torch.bfloat16),
    ],
)
def test_masks_and_autocast_as_models_write_them(
    kind: type[Eager], mixed: torch.dtype | None
) -> None:
    def step() -> None:
        with torch.autocast("cuda", mixed, enabled=mixed is not None):
            loss = model(x).float().square().sum()
        loss.backward()
        optimizer.step()

    model = nn.Sequential(kind(8, 1, False), kind(8, 1, False)).to("meta")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.rand(4, 3, 8, device="meta")
    before = capture(step, device="meta").graph
    after = rewrite(before, "fuse-attention").graph
    assert verify(after) == []
    assert not {"aten._softmax", "aten._softmax_backward_data", "aten.bmm"} & kernels(after).keys()
    result = compare(before, after)
    assert result.same, str(result)
