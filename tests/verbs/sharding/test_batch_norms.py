"""Batch norms over the samples of all ranks, or of each rank, proven by running all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules._functions import SyncBatchNorm

from irgraph.execute import compare_ranks
from irgraph.execute.substitutes import SUBSTITUTES
from irgraph.ir.graph import Graph
from irgraph.ir.ranks import is_collective
from irgraph.plans.plan import Plan
from irgraph.predict.prediction import predict
from irgraph.verbs.sharding.shard import shard
from tests.examples.test_several_gpus import Counting
from tests.execute.test_parallel_layers import captured
from tests.verbs.sharding.test_captured_models import step_of
from tests.verbs.sharding.test_torch_counts import RANKS, mesh, plain

CHANNELS, BATCH, PLACES = 6, 8, 5


class Normed(nn.Module):
    """A norm of images between convolutions, whose statistics are of ``groups`` of samples."""

    shape = (3, PLACES, PLACES)
    groups = 1

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, CHANNELS, 1), nn.Conv2d(CHANNELS, 5, 1)
        self.norm = nn.BatchNorm2d(CHANNELS, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        images = self.first(x)
        if self.groups > 1:
            normed = torch.cat([self.norm(part) for part in images.chunk(self.groups)])
        else:
            normed = self.norm(images)
        return self.last(normed.relu()).mean((2, 3))


class Halves(Normed):
    """The same model with statistics of each half of the samples."""

    groups = 2


def moves(graph: Graph) -> Counter[tuple[str, str, int]]:
    """Return the collectives of statistics: phase, name and bytes that a rank sends."""
    calls = [op for op in graph.leaves() if is_collective(op) and len(op.inputs) == 1]
    sizes = [(op.phase, op.base.rstrip("_"), int(op.inputs[0].nbytes)) for op in calls]
    return Counter(size for size in sizes if size[2] > 8)


@pytest.fixture
def _torch_norms(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give torch kernels of the parts of a norm, which it has for CUDA devices only.

    The group that exchanges nothing gathers lists only.
    """
    library = torch.library.Library("aten", "IMPL")
    for name, function in SUBSTITUTES.items():
        if name.startswith("aten.batch_norm_"):
            library.impl(name.removeprefix("aten."), function, "CPU")

    def gather(gathered: Tensor, own: Tensor, group: object, **_: object) -> None:
        dist.all_gather_into_tensor(gathered.view(-1), own, group)

    monkeypatch.setattr(dist, "all_gather_single", gather)
    yield
    library._destroy()


def torch_moves() -> Counter[tuple[str, str, int]]:
    """Return the collectives of torch's module for the norm of ``Normed``."""
    image = torch.randn(BATCH // RANKS, CHANNELS, PLACES, PLACES, requires_grad=True)
    weight, bias = (torch.ones(CHANNELS, requires_grad=True) for _ in range(2))
    with mesh():
        group = dist.group.WORLD
        with Counting() as forward:
            normed = SyncBatchNorm.apply(image, weight, bias, None, None, 1e-5, 0.1, group, RANKS)
        with Counting() as backward:
            normed.sum().backward()
    passes = {"forward": plain(forward.given), "backward": plain(backward.given)}
    return Counter({(phase, *key): n for phase in passes for key, n in passes[phase].items()})


@pytest.mark.parametrize("ranks", [2, 4])
def test_statistics_are_of_the_samples_of_all_ranks(ranks: int) -> None:
    graph = step_of(Normed)
    models = [shard(graph, Plan(ranks), rank).graph for rank in range(ranks)]
    assert compare_ranks(graph, models, draws=2).same


class Rooted:
    """A step with a bias whose gradient is zero but for roundings, over the root of its square."""

    def __init__(self, batch: int) -> None:
        self.model = Normed().to("meta")
        self.optimizer = torch.optim.Adamax(self.model.parameters())
        self.images = torch.zeros(batch, *Normed.shape)
        self.classes = torch.zeros(batch, dtype=torch.int64)

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad()
        scores = self.model(self.images.to("meta"))
        loss = nn.functional.cross_entropy(scores, self.classes.to("meta"))
        loss.backward()
        self.optimizer.step()
        return loss.detach()


@pytest.mark.parametrize("seed", [0, 1])
def test_gradients_of_roundings_may_be_others(seed: int) -> None:
    graph = captured(Rooted)
    models = [shard(graph, Plan(2), rank).graph for rank in range(2)]
    assert compare_ranks(graph, models, seed=seed).same


@pytest.mark.usefixtures("_torch_norms")
def test_statistics_move_as_by_torch() -> None:
    of_plan = moves(shard(step_of(Normed), Plan(RANKS), 0).graph)
    assert torch_moves() == of_plan
    assert len(of_plan) == 2


def test_every_part_has_a_price() -> None:
    model = shard(step_of(Normed), Plan(RANKS), 0).graph
    assert predict(model, "a100-sxm4-40gb").priced.unknown == ()


def test_statistics_of_each_rank_are_those_of_its_samples() -> None:
    graph, reference = step_of(Normed), step_of(Halves)
    plan = Plan(2, norms="local")
    models = [shard(graph, plan, rank).graph for rank in range(2)]
    assert not moves(models[0])
    assert compare_ranks(reference, models, draws=2).same
    assert not compare_ranks(graph, models, draws=2).same
