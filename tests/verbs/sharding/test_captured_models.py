"""Captured models whose batch ranks share, proven by running all ranks."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from irgraph.execute import compare_ranks
from irgraph.ir.graph import Graph
from irgraph.ir.ranks import is_collective
from irgraph.plans.plan import Plan, uniform
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.embeddings.tables import table_sizes
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


class Gates(nn.Module):
    """Half of the channels of a convolution, scaled by the other half."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scores = nn.Conv2d(3, 16, 3), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.scores(functional.glu(self.body(x), 1).mean((2, 3)))


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


class Patches(nn.Module):
    """A vision transformer, whose attention puts the sequence in front of the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.scores = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 5)
        self.first, self.places = (
            nn.Parameter(torch.zeros(1, 1, 16)),
            nn.Parameter(torch.zeros(5, 16)),
        )
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, "gelu", batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        patches = self.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(x), -1, -1), patches], 1) + self.places
        return self.scores(self.layer(tokens)[:, 0])


class Residual(nn.Module):
    """A residual network of two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.scores = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(16, 5)
        sizes = ((8, 8, 1), (8, 16, 2))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, after, 3, stride, 1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.Conv2d(after, after, 3, padding=1, bias=False),
                nn.BatchNorm2d(after),
            )
            for before, after, stride in sizes
        )
        self.skips = nn.ModuleList(nn.Conv2d(a, b, 1, s, bias=False) for a, b, s in sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        x = self.stem(x)
        for block, skip in zip(self.blocks, self.skips, strict=True):
            x = functional.relu(block(x) + skip(x))
        return self.scores(functional.adaptive_avg_pool2d(x, 1).flatten(1))


def convolved(before: int, after: int) -> nn.Module:
    """Return two convolutions with norms, whose activations overwrite their operands."""
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers.append(nn.Conv2d(channels, after, 3, padding=1, bias=False))
        layers += [nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Segmenter(nn.Module):
    """A U-Net of two levels with norms, resampled, padded and transposed on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep, self.deepest = convolved(3, 4), convolved(4, 8), convolved(8, 8)
        self.up, self.wide = nn.ConvTranspose2d(8, 4, 2, 2), convolved(16, 8)
        self.last = nn.Sequential(convolved(8, 4), nn.Conv2d(4, 5, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of pixels."""
        wide = self.down(x)
        deep = self.deep(functional.max_pool2d(wide, 2))
        found = self.deepest(functional.max_pool2d(deep, 2))
        found = functional.interpolate(found, scale_factor=2, mode="bilinear", align_corners=True)
        found = functional.pad(found, [0, deep.shape[-1] - found.shape[-1], 0, 0])
        found = self.up(self.wide(torch.cat([deep, found], 1)))
        return self.last(torch.cat([wide, found], 1)).mean((2, 3))


class Inception(nn.Module):
    """Branches of factored convolutions and pools, a norm across channels, and a second head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.factored = nn.Sequential(
            nn.Conv2d(8, 4, (1, 3), padding=(0, 1)), nn.Conv2d(4, 4, (3, 1), padding=(1, 0))
        )
        self.narrow, self.pooled = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)
        self.second, self.scores = nn.Linear(8 * 4, 5), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        scaled = torch.stack([x[:, i] * 0.5 + 0.1 for i in range(3)], 1)
        found = functional.local_response_norm(self.stem(scaled), 3)
        second = self.second(functional.adaptive_max_pool2d(found, 2).flatten(1))
        found = functional.max_pool2d(found, 3, 2, ceil_mode=True)
        average = functional.avg_pool2d(found, 3, 1, 1)
        branches = [self.factored(found), self.narrow(found), self.pooled(average)]
        return self.scores(torch.cat(branches, 1).mean((2, 3))) + 0.3 * second


class Boxes(nn.Module):
    """A dense detection head: boxes around anchors, the best of them, and how they overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, 2, 1)
        self.scores, self.boxes = nn.Conv2d(8, 10, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.register_buffer("anchors", torch.zeros(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores, without boxes that overlap."""
        features, samples = functional.relu(self.body(x)), len(x)
        scores = self.scores(features).view(samples, 2, 5, 4, 4).permute(0, 3, 4, 1, 2)
        boxes = self.boxes(features).view(samples, 2, 4, 4, 4).permute(0, 3, 4, 1, 2)
        scores, boxes = scores.reshape(samples, -1, 5), boxes.reshape(samples, -1, 4)
        boxes = boxes.clamp(max=2.0).exp() * self.anchors + self.anchors
        values, order = scores.sigmoid().max(-1)[0].topk(6, 1)
        best = boxes.gather(1, order[..., None].expand(-1, -1, 4))
        low = torch.maximum(best[:, :, None, :2], best[:, None, :, :2])
        high = torch.minimum(best[:, :, None, 2:], best[:, None, :, 2:])
        alone = ((high - low).clamp(min=0).prod(-1) < 0.5).all(-1)
        return scores.logsumexp(1) + (alone * values).sum(1, keepdim=True)


MODELS = [
    Encoder, Detector, Branches, Groups, Recurrent, Bags, Heads, Experts, Patches, Residual,
    Segmenter, Inception, Boxes, Gates,
]  # fmt: skip


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


@pytest.mark.parametrize("model", [Patches, Heads, Recurrent, Experts, Inception, Boxes, Gates])
def test_ranks_exchange_no_activations(model: type[nn.Module]) -> None:
    """Samples may lie within an axis of tokens: ``[5 * B, 16]`` is split in 5 runs."""
    of_rank = shard(step_of(model), plan_of(step_of(model), 2), 1).graph
    names = [op.base for op in of_rank.leaves() if is_collective(op)]
    assert sorted(names) == ["all_reduce_", "all_reduce_coalesced_"]


class Tokens(nn.Module):
    """Scores of tokens, the sequence in front, that a step returns and the host reads."""

    shape = (4, 8)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return [tokens, 5] with samples in the last place."""
        return self.layer(x.transpose(0, 1).reshape(-1, 8))


def test_results_in_runs_become_blocks() -> None:
    class Step:
        def __init__(self, batch: int) -> None:
            self.model = Tokens().to("meta")
            self.x = torch.zeros(batch, *Tokens.shape)

        def __call__(self) -> tuple[Tensor, Tensor]:
            scores = self.model(self.x.to("meta"))
            return scores, scores.cumsum(0)

    graph = captured(Step)
    models = [shard(graph, Plan(2), rank).graph for rank in range(2)]
    assert compare_ranks(graph, models, draws=1).same
    names = [op.base for op in models[0].leaves() if is_collective(op)]
    assert set(names) == {"all_gather_into_tensor"}
