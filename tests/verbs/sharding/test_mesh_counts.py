"""Collectives of plans on a mesh, by name, group and bytes, compared with torch's own FSDP2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from irgraph.ir.graph import Graph
from irgraph.ir.ranks import group_of, is_collective
from irgraph.plans.plan import Mesh, Plan
from irgraph.verbs.sharding.shard import shard
from tests.examples.test_several_gpus import Counting
from tests.execute.test_parallel_layers import PAIRS, WIDTH, WORDS, Layer
from tests.verbs.sharding.test_pins import LENGTH, language
from tests.verbs.sharding.test_torch_counts import BATCH, WAYS, by_module

Moves = Counter[tuple[str, str, int]]
"""Numbers of collectives, by name, process group and bytes that a rank sends."""

GATHER, SCATTER, SUM = "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"
NAMES = {
    "_allgather_base_": GATHER,
    "_reduce_scatter_base_": SCATTER,
    "all_reduce": SUM,
    "allreduce_": SUM,
}


class GroupCounting(Counting):
    """Torch's counter of collectives, with the process group and the bytes that a rank sends."""

    def __init__(self) -> None:
        super().__init__()
        self.moves: Moves = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count a collective; FSDP's calls have the operand behind the tensor that receives."""
        before = self.get_total_counts()
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self.get_total_counts() > before:
            leaves = tree_leaves(args)
            sent = [leaf for leaf in leaves if torch.is_tensor(leaf)][-1]
            name = func._schema.name.partition("::")[2]
            self.moves[NAMES[name], group_name(leaves), sent.nbytes] += 1
        return result


def group_name(arguments: list[Any]) -> str:
    """Return the name of the process group among the arguments of a collective."""
    for argument in arguments:
        if isinstance(argument, torch.ScriptObject):
            try:
                return str(dist.ProcessGroup.unbox(argument).group_name)
            except (AttributeError, RuntimeError):
                continue
    return str(arguments[-1])


def torch_moves(
    parallelize: Callable[[nn.Module, DeviceMesh], object], axes: tuple[str, str], batch: int
) -> tuple[Moves, Moves]:
    """Return the collectives of torch's forward and backward pass on a mesh of two times two."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=axes)
        names = {mesh[axis].get_group().group_name: axis for axis in axes}
        model = nn.Sequential(nn.Embedding(WORDS, WIDTH), Layer(), nn.Linear(WIDTH, WORDS))
        parallelize(model, mesh)
        text = torch.zeros(batch, LENGTH + 1, dtype=torch.int64)
        with GroupCounting() as forward:
            scores = model(text[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
        with GroupCounting() as backward:
            loss.backward()
    finally:
        dist.destroy_process_group()
    return tuple(  # type: ignore[return-value]
        Counter({(name, names[group], size): n for (name, group, size), n in c.moves.items()})
        for c in (forward, backward)
    )


def plan_moves(graph: Graph, phase: str) -> Moves:
    """Return the collectives of a rank's phase, those of a module's parameters as one."""
    calls = [op for op in graph.leaves() if is_collective(op) and op.phase == phase]
    sizes: Counter[tuple[str, str, str]] = Counter()
    for index, op in enumerate(calls):
        name = op.base.rstrip("_").removesuffix("_coalesced")
        part = f"{op.module}#{index}" if name == SUM else op.module
        sizes[name, group_of(op), part] += sum(tensor.nbytes for tensor in op.inputs)
    return Counter((name, group, size) for (name, group, _), size in sizes.items() if size > 8)


def selected(moves: Moves, name: str, group: str) -> Counter[int]:
    """Return the numbers of collectives of a name and a group, by bytes."""
    return Counter(
        {size: n for (kind, over, size), n in moves.items() if (kind, over) == (name, group)}
    )


def total(moves: Moves, name: str, group: str) -> int:
    return sum(size * count for size, count in selected(moves, name, group).items())


def unread_bytes(graph: Graph) -> int:
    """Return the bytes of parameters that no gradient reads, which FSDP2 gathers in backward, too.

    They are rows of the embedding, and biases of linear layers.
    """
    sizes = {d.label: d.tensor.nbytes for d in graph.tensors if d.role == "param"}
    biases = (n for n in sizes if n.endswith("bias") and "norm" not in n)
    return sum(sizes[name] for name in ("0.weight", *biases))


def assert_parameters_move_as_by_fsdp(graph: Graph, forward: Moves, backward: Moves) -> None:
    """Compare gatherings and scatterings; backward, a plan gathers only what gradients read."""
    of_plan = plan_moves(graph, "forward"), plan_moves(graph, "backward")
    assert of_plan[0] == forward
    assert selected(of_plan[1], SCATTER, "data") == selected(backward, SCATTER, "data")
    gathered = total(of_plan[1], GATHER, "data")
    assert gathered + unread_bytes(graph) == total(backward, GATHER, "data") > gathered > 0


def test_layers_and_parameters_move_as_by_tensor_parallelism_and_fsdp() -> None:
    """A plan adds gradients of query, key and value up before their sum, DTensor after three."""

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
        parallelize_module(model, mesh["tensor"], WAYS)
        by_module(model, mesh["data"])

    forward, backward = torch_moves(parallelize, ("data", "tensor"), BATCH // 2)
    plan = Plan(4, layers=PAIRS, parameters="split", mesh=Mesh(2, 2))
    graph = shard(language(), plan, 0).graph
    assert_parameters_move_as_by_fsdp(graph, forward, backward)
    nbytes = graph.by_name["embedding1"].nbytes
    assert selected(forward, SUM, "tensor") == {nbytes: 2}
    assert selected(backward, SUM, "tensor") == {nbytes: 4}
    assert selected(plan_moves(graph, "backward"), SUM, "tensor") == {nbytes: 2}
    assert not plan_moves(graph, "optimizer")


def test_replicas_move_as_by_hybrid_fsdp() -> None:
    """A plan sums the gradients of all modules over replicas by one collective."""
    forward, backward = torch_moves(by_module, ("replicas", "data"), BATCH // 4)
    plan = Plan(4, parameters="split", mesh=Mesh(2, 1, 2))
    graph = shard(language(), plan, 0).graph
    assert_parameters_move_as_by_fsdp(graph, forward, backward)
    size = total(backward, SUM, "replicas")
    assert plan_moves(graph, "optimizer") == {(SUM, "replicas", size): 1}
