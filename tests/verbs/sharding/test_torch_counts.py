"""Collectives of plans for a language model, compared with those of torch's own parallelism."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from irgraph.ir.ranks import is_collective
from irgraph.plans.plan import Plan
from irgraph.verbs.sharding.shard import shard
from tests.examples.test_several_gpus import Counting
from tests.execute.test_parallel_layers import PAIRS, WIDTH, WORDS, Layer
from tests.verbs.sharding.test_pins import LENGTH, language

RANKS, BATCH = 2, 8

Counts = Counter[tuple[str, int]]
"""Numbers of collectives, by kind and bytes that a rank sends."""


@contextmanager
def mesh() -> Iterator[DeviceMesh]:
    """Run as one of several ranks on the CPU that exchange nothing."""
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (RANKS,))
    finally:
        dist.destroy_process_group()


def torch_counts(
    parallelize: Callable[[nn.Module, DeviceMesh], object], batch: int
) -> tuple[Counts, Counts]:
    """Return the collectives of torch's forward and backward pass."""
    with mesh() as devices:
        model = nn.Sequential(nn.Embedding(WORDS, WIDTH), Layer(), nn.Linear(WIDTH, WORDS))
        parallelize(model, devices)
        text = torch.zeros(batch, LENGTH + 1, dtype=torch.int64)
        with Counting() as forward:
            scores: Tensor = model(text[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
        with Counting() as backward:
            loss.backward()
    return plain(forward.given), plain(backward.given)


def plain(counts: Counts) -> Counts:
    """Return counts with the names of a graph, and the bytes that a rank sends.

    The calls of FSDP name the tensor that receives, too, which has ``RANKS`` times the size.
    """
    names = {
        "_allgather_base_": ("all_gather_into_tensor", 1),
        "all_gather_into_tensor": ("all_gather_into_tensor", 1),
        "allreduce_": ("all_reduce", RANKS + 1),
        "_reduce_scatter_base_": ("reduce_scatter_tensor", RANKS),
        "reduce_scatter_tensor": ("reduce_scatter_tensor", RANKS),
    }
    renamed: Counts = Counter()
    for (name, size), count in counts.items():
        new_name, parts = names.get(name, (name, RANKS + 1))
        renamed[new_name, size * parts // (RANKS + 1)] += count
    return renamed


def plan_counts(plan: Plan, phase: str) -> Counts:
    """Return the collectives of a plan in a phase, without those of numbers."""
    graph = shard(language(), plan, 0).graph
    calls = [op for op in graph.leaves() if is_collective(op) and op.phase == phase]
    sizes = [(op.base, sum(t.nbytes for t in op.inputs)) for op in calls]
    return Counter(size for size in sizes if size[1] > 8)


def total(counts: Counts, name: str) -> int:
    return sum(size * count for (kind, size), count in counts.items() if kind == name)


def by_module(model: nn.Module, devices: DeviceMesh) -> None:
    """Gather the parameters of each module before it runs, as FSDP2 does."""
    for module in model.modules():
        if list(module.parameters(recurse=False)):
            fully_shard(module, mesh=devices)
    fully_shard(model, mesh=devices)


def test_parameters_are_gathered_and_scattered_as_by_fsdp() -> None:
    """FSDP has one collective for the parameters of a module, a plan one for each.

    In the backward pass FSDP gathers all parameters of a module, a plan only those that gradients
    read: neither rows of the embedding, nor biases of linear layers.
    """
    plan = Plan(RANKS, parameters="split")
    forward, backward = torch_counts(by_module, BATCH // RANKS)
    gathering, scattering = "all_gather_into_tensor", "reduce_scatter_tensor"
    of_plan = plan_counts(plan, "forward"), plan_counts(plan, "backward")
    assert total(of_plan[0], gathering) == total(forward, gathering) > 0
    assert total(of_plan[1], scattering) == total(backward, scattering) > 0
    params = {d.label: d.tensor.nbytes for d in language().tensors if d.role == "param"}
    unread = [n for n in params if n == "0.weight" or (n.endswith("bias") and "norm" not in n)]
    difference = sum(params[name] for name in unread) // RANKS
    assert total(of_plan[1], gathering) + difference == total(backward, gathering)
    assert sum(n for (kind, _), n in of_plan[0].items() if kind == gathering) == len(params)
    modules = sum(1 for name in params if name.endswith("weight"))
    assert sum(n for (kind, _), n in forward.items() if kind == gathering) == modules
    assert not plan_counts(plan, "optimizer")


WAYS = {
    "1.query": ColwiseParallel(), "1.key": ColwiseParallel(), "1.value": ColwiseParallel(),
    "1.out": RowwiseParallel(), "1.mlp.0": ColwiseParallel(), "1.mlp.2": RowwiseParallel(),
}  # fmt: skip


def test_layers_are_summed_as_by_tensor_parallelism() -> None:
    """Gradients of query, key and value are added up before the sum, by DTensor after three."""
    forward, backward = torch_counts(
        lambda model, devices: parallelize_module(model, devices, WAYS), BATCH
    )
    nbytes = language().by_name["embedding1"].nbytes
    assert forward == {("all_reduce", nbytes): 2}
    assert backward == {("all_reduce", nbytes): 4}
    plan = Plan(RANKS, layers=PAIRS)
    for phase in ("forward", "backward"):
        assert plan_counts(plan, phase) == {("all_reduce_", nbytes): 2}
