"""Captured models whose batch ranks share, proven by running all ranks."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from irgraph.execute import compare_ranks
from irgraph.ir.graph import Graph
from irgraph.plans.plan import Plan, uniform
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.shard import shard
from irgraph.verbs.sharding.tables import table_sizes
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


class Recurrent(nn.Module):
    """Layers over sequences in both directions, which save a workspace for their gradient."""

    shape = (6, 8)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(8, 12, 2, batch_first=True, bidirectional=True)
        self.gates, self.scores = nn.GRU(24, 12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        found, _ = self.layers(x)
        return self.scores(self.gates(found.transpose(0, 1))[0].mean(0))


class Bags(nn.Module):
    """Tables looked up by rows of ids, whose bags ``arange`` counts, and their products."""

    shape = (8,)

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(11, 8, mode="sum") for _ in range(3))
        self.scores = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        ids = (x[:, :2] > 0).to(torch.int64)
        features = torch.stack([x, *(table(ids) for table in self.tables)], 1)
        return self.scores((features @ features.transpose(1, 2)).flatten(1))


class Heads(nn.Module):
    """Attention with fewer heads of keys, after a norm without a mean."""

    shape = (6, 16)

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.scores = nn.RMSNorm(16), nn.Linear(16, 5)
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        given = self.norm(x)
        query = self.query(given).view(len(x), 6, 4, 4).transpose(1, 2)
        key = self.key(given).view(len(x), 6, 2, 4).transpose(1, 2).repeat_interleave(2, 1)
        mixed = functional.scaled_dot_product_attention(query, key, key, is_causal=True)
        return self.scores(mixed.transpose(1, 2).reshape(len(x), 6, 16).mean(1))


class Experts(nn.Module):
    """Experts that all see every sample, weighted by the best two of their gates."""

    shape = (6, 8)

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.scores = nn.Linear(8, 4), nn.Linear(8, 5)
        self.up, self.down = (
            nn.Parameter(torch.zeros(4, 8, 16)),
            nn.Parameter(torch.zeros(4, 16, 8)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        shares = self.gate(x).softmax(-1)
        best, chosen = shares.topk(2, -1)
        gates = torch.zeros_like(shares).scatter(-1, chosen, best)
        hidden = torch.einsum("btd,edh->bteh", x, self.up).relu()
        found = torch.einsum("bteh,ehd->bted", hidden, self.down)
        return self.scores((found * gates[..., None]).sum(2).mean(1))


MODELS = [Encoder, Detector, Branches, Groups, Recurrent, Bags, Heads, Experts]


@cache
def step_of(model: type[nn.Module]) -> Graph:
    """Return a captured training step."""

    class Step:
        def __init__(self, batch: int) -> None:
            self.model = model().to("meta")
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.images = torch.zeros(batch, *getattr(model, "shape", (3, 8, 8)))
            self.classes = torch.zeros(batch, dtype=torch.int64)

        def __call__(self) -> Tensor:
            self.optimizer.zero_grad()
            scores = self.model(self.images.to("meta"))
            loss = functional.cross_entropy(scores, self.classes.to("meta"))
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    return captured(Step)


def plan_of(graph: Graph, ranks: int) -> Plan:
    return uniform("data-parallel", ranks, table_sizes(graph))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("model", MODELS)
def test_ranks_of_a_captured_model_have_the_results_of_the_step(
    model: type[nn.Module], ranks: int
) -> None:
    graph = step_of(model)
    models = [shard(graph, plan_of(graph, ranks), rank).graph for rank in range(ranks)]
    assert compare_ranks(graph, models, draws=1).same


def test_offsets_of_the_bags_of_all_ranks_are_refused() -> None:
    class Counts(Bags):
        def forward(self, x: Tensor) -> Tensor:
            ids = (x[:, :2] > 0).to(torch.int64)
            starts = torch.full((len(x),), 2, device=x.device).cumsum(0) - 2
            found = self.tables[0](ids.flatten(), starts)
            return self.scores(torch.cat([found, found], 1))

    graph = step_of(Counts)
    with pytest.raises(RefusedError, match="is computed for the bags of all ranks"):
        shard(graph, plan_of(graph, 2), 0)
