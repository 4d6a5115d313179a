"""Optimizers, gradients and parameters that ranks share (ZeRO), proven by running all ranks."""

from __future__ import annotations

from functools import cache
from math import inf

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional

from irgraph.ir.graph import Graph
from irgraph.ir.ranks import is_collective
from irgraph.plans.plan import Mesh, Plan
from irgraph.plans.reading import read_plan
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.shard import shard
from tests.examples.test_several_gpus import Counting
from tests.execute.test_parallel_layers import WIDTH, WORDS, Layer, captured, language, proven
from tests.verbs.sharding.test_torch_counts import (
    BATCH,
    LENGTH,
    RANKS,
    mesh,
    plan_counts,
    torch_counts,
    total,
)

ZERO_1 = {"optimizer": "split"}
ZERO_2 = {"optimizer": "split", "gradients": "split"}
GATHER, SCATTER, SUM = "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"


def moves(graph: Graph) -> list[tuple[str, str]]:
    """Return the phases and names of collectives, except that of the loss."""
    calls = (op for op in graph.leaves() if is_collective(op) and op.inputs[0].shape)
    return [(op.phase, op.base) for op in calls]


def sizes(graph: Graph, role: str) -> dict[str, int]:
    return {d.tensor.name: d.tensor.numel for d in graph.tensors if d.role == role}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("options", [ZERO_1, ZERO_2])
def test_state_and_updates_are_split(options: dict[str, str], ranks: int) -> None:
    done = proven(language(), read_plan(str(Plan(ranks, **options))))  # type: ignore[arg-type]
    assert sizes(done.graph, "param") == sizes(language(), "param")
    states = sizes(done.graph, "state")
    wholes = {name: n for name, n in sizes(language(), "state").items() if n > 1}
    assert all(states[name] * ranks == size for name, size in wholes.items())
    count = len(sizes(language(), "param"))
    scatterings = [("backward", SCATTER)] * count
    if options == ZERO_1:
        scatterings = [("optimizer", SCATTER)]
    assert moves(done.graph) == [*scatterings, ("optimizer", GATHER)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_parameters_are_gathered_once(ranks: int) -> None:
    done = proven(language(), Plan(ranks, parameters="retained"))
    count = len(sizes(language(), "param"))
    expected = [("forward", GATHER)] * count + [("backward", SCATTER)] * count
    assert moves(done.graph) == expected


class Clipped:
    """A step whose gradients are clipped by their norm before the update."""

    power = 2.0

    def __init__(self, batch: int) -> None:
        self.model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)).to("meta")
        self.optimizer = torch.optim.Adam(self.model.parameters(), foreach=True)
        self.given = torch.zeros(batch, 16)

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model(self.given.to("meta")).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, self.power)
        self.optimizer.step()
        return loss.detach()


@cache
def clipped() -> Graph:
    return captured(Clipped)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("options", [ZERO_1, ZERO_2, {"parameters": "split"}])
def test_norms_of_gradients_are_of_the_whole_step(options: dict[str, str], ranks: int) -> None:
    proven(clipped(), Plan(ranks, **options))  # type: ignore[arg-type]


def test_norms_are_summed_as_by_fsdp() -> None:
    """FSDP2 sums the squares of the norms of all parameters, a plan those of their norm."""
    with mesh() as devices:
        model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
        for module in (model[0], model[2], model):
            fully_shard(module, mesh=devices)
        model(torch.zeros(4, 16)).square().mean().backward()
        with Counting() as clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    numbers = len(list(model.parameters()))
    assert clip.given == {("all_reduce", 4 * numbers): 1}
    graph = shard(clipped(), Plan(RANKS, parameters="split"), 0).graph
    calls = [op for op in graph.leaves() if is_collective(op) and op.base == "all_reduce_"]
    assert [op.inputs[0].nbytes for op in calls] == [4]


class LargestClipped(Clipped):
    """A step whose gradients are clipped by the largest of them."""

    power = inf


class CubeClipped(Clipped):
    """A step whose gradients are clipped by another norm."""

    power = 3.0


@pytest.mark.parametrize("mesh", [None, Mesh(2, 2), Mesh(2, 1, 2)])
@pytest.mark.parametrize("kind", [Clipped, LargestClipped, CubeClipped])
def test_norms_of_other_powers_are_of_the_whole_step(
    kind: type[Clipped], mesh: Mesh | None
) -> None:
    layers = {"0": "column-parallel"} if mesh == Mesh(2, 2) else {}
    ranks = mesh.size if mesh else 2
    plan = Plan(ranks, parameters="split", mesh=mesh, layers=layers)  # type: ignore[arg-type]
    done = proven(captured(kind), plan)
    names = [op.base for op in done.graph.leaves()]
    first = next(i for i, name in enumerate(names) if "norm" in name)
    end = names.index("clamp")
    assert GATHER not in names[first:end]
    assert {"all_reduce_", "all_reduce"} & set(names[first:end])


class InPlace(Clipped):
    """A step that adds to the norm of its gradients in place, and returns it."""

    def __call__(self) -> Tensor:
        """Return the norm."""
        self.optimizer.zero_grad()
        self.model(self.given.to("meta")).square().mean().backward()
        norm = torch.linalg.vector_norm(self.model[0].weight.grad)
        norm.add_(1.0)
        self.optimizer.step()
        return norm


def test_norms_are_written_and_returned() -> None:
    proven(captured(InPlace), Plan(2, parameters="split"))


def test_retained_parameters_move_as_by_fsdp_without_resharding() -> None:
    def once(model: nn.Module, devices: object) -> None:
        for module in model.modules():
            if list(module.parameters(recurse=False)):
                fully_shard(module, mesh=devices, reshard_after_forward=False)  # type: ignore[arg-type]
        fully_shard(model, mesh=devices, reshard_after_forward=False)  # type: ignore[arg-type]

    forward, backward = torch_counts(once, BATCH // RANKS)
    plan = Plan(RANKS, parameters="retained")
    of_plan = plan_counts(plan, "forward"), plan_counts(plan, "backward")
    assert total(of_plan[0], GATHER) == total(forward, GATHER) > 0
    assert total(of_plan[1], SCATTER) == total(backward, SCATTER) > 0
    assert total(of_plan[1], GATHER) == total(backward, GATHER) == 0


def test_updates_move_the_bytes_of_zero_redundancy_optimizer() -> None:
    """Torch divides parameters, not rows, and sends each from its rank to the others."""
    with mesh():
        model = nn.Sequential(nn.Embedding(WORDS, WIDTH), Layer(), nn.Linear(WIDTH, WORDS))
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
        text = torch.zeros(4, LENGTH + 1, dtype=torch.int64)
        scores = model(text[:, :-1]).flatten(0, 1)
        functional.cross_entropy(scores, text[:, 1:].flatten()).backward()
        with Counting() as update:
            optimizer.step()
    (gathered,) = (
        n for (k, n) in plan_counts(Plan(RANKS, optimizer="split"), "optimizer") if k == GATHER
    )
    sent = sum(size * count for (_, size), count in update.given.items())
    assert gathered * RANKS == sent


def test_gradients_are_split_with_the_optimizer_only() -> None:
    with pytest.raises(RefusedError, match="add `optimizer`"):
        shard(language(), Plan(2, gradients="split"), 0)
