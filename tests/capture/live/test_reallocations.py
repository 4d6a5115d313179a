"""Memory below tensors that a program frees, and allocates again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from irgraph.capture.common.result import Capture
from irgraph.capture.live import capture_file
from irgraph.execute import compare, execute
from irgraph.ops.verify import verify
from irgraph.schedule.memory.peak import peak_memory
from irgraph.text import parse, print_graph

SHARDED = """
import os
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

def train(batch, device, reshards=True, layers=8):
    card = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
    model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(layers))).to(card)
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshards)
    fully_shard(model, mesh=mesh)
    x = torch.rand(batch, 512)

    def step():
        model(x.to(card)).sum().backward()

    step.model = model
    return step
"""

RESIZED = """
import torch

def train(batch, device):
    x, buffer = torch.rand(4, 4), torch.zeros(16, device=device)
    rows, half = buffer.view(4, 4), buffer[8:].view(torch.int32)

    def step():
        given = x.to(device)
        buffer.untyped_storage().resize_(64)
        rows.copy_(given)
        total = rows.exp().sum() + half.abs().sum()
        buffer.untyped_storage().resize_(0)
        buffer.untyped_storage().resize_(64)
        torch.mul(given, 2, out=rows)
        total = total + rows.sum()
        buffer.untyped_storage().resize_(0)
        return total

    return step
"""

WEIGHT = 512 * 512 * 4
"""Bytes of a layer's weight."""


def sharded(folder: Path, options: str) -> Capture:
    (folder / "sharded.py").write_text(SHARDED)
    captured = capture_file(f"{folder}/sharded.py:train({options})", batch=8, ranks=16)
    assert verify(captured.graph) == []
    assert parse(print_graph(captured.graph)) == captured.graph
    return captured


@pytest.mark.parametrize(("reshards", "weights"), [(True, (1, 3.2)), (False, (8, 8.2))])
def test_gathered_weights_count_while_they_exist(
    tmp_path: Path, reshards: bool, weights: tuple[float, float]
) -> None:
    graph = sharded(tmp_path, f"{reshards=}").graph
    memory = peak_memory(graph)
    shards = 8 * WEIGHT / 16
    assert memory.by_kind["parameters"] == shards
    assert memory.by_kind["state"] == shards  # gradients of an earlier step
    assert weights[0] <= memory.by_kind["activations"] / WEIGHT <= weights[1]


def test_each_allocation_is_a_buffer_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "resized.py").write_text(RESIZED)
    graph = capture_file(f"{tmp_path}/resized.py:train", batch=4, symbolic=False).graph
    assert verify(graph) == []
    empty = [leaf for leaf in graph.leaves() if leaf.name == "aten.empty"]
    assert len({leaf.outputs[0].buffer for leaf in empty}) == len(empty) == 2
    assert [declared.role for declared in graph.tensors] == ["input"]
    assert compare(graph, graph).same
    x = torch.rand(4, 4)
    (name,) = (declared.tensor.name for declared in graph.tensors)
    (result,) = graph.returned or ()
    actual = execute(graph, {name: x})[result.name]
    expected = x.exp().sum() + x.view(-1)[8:].view(torch.int32).abs().sum() + (2 * x).sum()
    assert torch.allclose(actual, expected)
