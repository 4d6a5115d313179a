"""Captured models whose batch ranks share, proven by running all ranks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from irgraph.execute import compare_ranks
from irgraph.plans.plan import Plan
from irgraph.verbs.sharding.shard import shard
from tests.execute.test_parallel_layers import captured


class Encoder(nn.Module):
    """A U-Net of one level."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Conv2d(16, 5, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of pixels."""
        skipped = functional.relu(self.first(x))
        deep = functional.relu(self.second(functional.max_pool2d(skipped, 2)))
        return self.last(torch.cat([skipped, self.up(deep)], 1)).mean((2, 3))


class Detector(nn.Module):
    """Scores of places, of which the best are sorted and gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, 2, 1)
        self.scores, self.boxes = nn.Conv2d(8, 5, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        features = functional.relu(self.body(x))
        scores = self.scores(features).flatten(2).transpose(1, 2)
        _, order = scores.max(2)[0].sort(1, descending=True)
        boxes = self.boxes(features).flatten(2).transpose(1, 2)
        best = boxes.gather(1, order[:, :8, None].expand(-1, -1, 4))
        return torch.cat([scores.mean(1), best.mean(1)], 1)


class Branches(nn.Module):
    """Convolutions of several sizes, and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv2d(3, 4, n, padding=n // 2) for n in (1, 3, 5))
        self.norm, self.scores = nn.BatchNorm2d(12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        joined = self.norm(torch.cat([branch(x) for branch in self.branches], 1))
        return self.scores(functional.adaptive_avg_pool2d(joined.relu(), 1).flatten(1))


class Groups(nn.Module):
    """A convolution and a group norm, whose call names the number of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)
        self.scores = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.scores(self.norm(self.body(x)).relu().mean((2, 3)))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("model", [Encoder, Detector, Branches, Groups])
def test_ranks_of_a_captured_model_have_the_results_of_the_step(
    model: type[nn.Module], ranks: int
) -> None:
    class Step:
        def __init__(self, batch: int) -> None:
            self.model = model().to("meta")
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.images = torch.zeros(batch, 3, 8, 8)
            self.classes = torch.zeros(batch, dtype=torch.int64)

        def __call__(self) -> Tensor:
            self.optimizer.zero_grad()
            scores = self.model(self.images.to("meta"))
            loss = functional.cross_entropy(scores, self.classes.to("meta"))
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    graph = captured(Step)
    models = [shard(graph, Plan(ranks), rank).graph for rank in range(ranks)]
    assert compare_ranks(graph, models, draws=1).same
