"""Calls that never reached the device are not in the model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from irgraph.capture.live import capture_file
from irgraph.execute import compare
from irgraph.ir.graph import Graph

CHECKPOINT = """
from functools import partial
import torch
from torch import nn
from torch.utils import checkpoint as saving
from torch.utils._python_dispatch import TorchDispatchMode

MM = torch.ops.aten.mm.default

def policy(context, func, *arguments, **options):
    policies = saving.CheckpointPolicy
    return policies.MUST_SAVE if func == MM else policies.PREFER_RECOMPUTE

class Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func == torch.ops.aten.mul.Tensor:
            return args[0] + args[0]
        return func(*args, **(kwargs or {}))

def train(batch, device, kind="none"):
    layers = [nn.Sequential(nn.Linear(16, 16, bias=False), nn.ReLU()) for _ in range(3)]
    model, x = nn.Sequential(*layers).to(device), torch.rand(batch, 16)
    contexts = partial(saving.create_selective_checkpoint_contexts, policy)
    options = {"selective": {"context_fn": contexts}, "full": {}}

    def step():
        given = x.to(device).requires_grad_()
        if kind == "none":
            model(given).sum().backward()
        else:
            saving.checkpoint(model, given, use_reentrant=False, **options[kind]).sum().backward()

    step.model = model
    return step

def replacing(batch, device):
    x = torch.rand(batch, 16)

    def step():
        with Doubling():
            return torch.exp(x.to(device) * 2)

    return step
"""

NO_OP = """
import os
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

def train(batch, device, casts=True):
    card = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("tp",))
    model, x = nn.Linear(16, 800, bias=False).to(card), torch.rand(batch, 16)
    parallelize_module(model, mesh, ColwiseParallel(use_local_output=False))

    def step():
        y = model(x.to(card))
        y = y.float() if casts else y
        y.to_local().sum().backward()

    step.model = model
    return step
"""


def products(graph: Graph) -> int:
    return sum(leaf.name == "aten.mm" for leaf in graph.leaves())


@pytest.mark.parametrize(("kind", "count"), [("none", 9), ("selective", 9), ("full", 12)])
def test_results_that_a_checkpoint_saved_are_not_computed_again(
    tmp_path: Path, kind: str, count: int
) -> None:
    (tmp_path / "saving.py").write_text(CHECKPOINT)
    graph = capture_file(f"{tmp_path}/saving.py:train(kind={kind!r})", batch=8).graph
    assert products(graph) == count  # what torch's own FlopCounterMode counts
    assert graph.dims == {"B": 8}
    assert {declared.role for declared in graph.tensors} == {"input", "param", "state"}
    assert compare(graph, graph).same


def test_a_mode_that_replaces_a_call_leaves_its_replacement(tmp_path: Path) -> None:
    (tmp_path / "saving.py").write_text(CHECKPOINT)
    graph = capture_file(f"{tmp_path}/saving.py:replacing", batch=8, symbolic=False).graph
    names = Counter(leaf.name for leaf in graph.leaves())
    assert names == {"aten._to_copy": 1, "aten.add": 1, "aten.exp": 1}
    assert compare(graph, graph).same


@pytest.mark.parametrize("casts", [False, True])
def test_conversions_of_distributed_tensors_that_do_nothing(tmp_path: Path, casts: bool) -> None:
    (tmp_path / "parallel.py").write_text(NO_OP)
    graph = capture_file(f"{tmp_path}/parallel.py:train({casts=})", batch=8, ranks=8).graph
    sizes = {size for tensor in graph.by_name.values() for size in tensor.shape}
    assert 800 not in sizes
    assert 100 in sizes
