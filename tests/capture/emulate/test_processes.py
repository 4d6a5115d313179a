"""Programs of several processes, captured in one that does not communicate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from irgraph.capture.common.result import Capture
from irgraph.capture.live import capture_file
from irgraph.ir.verify import verify
from irgraph.predict.prediction import predict
from irgraph.text import parse, print_graph

DDP = """
import torch
import torch.distributed as dist
from torch import nn

def train(batch, device, backend="nccl", ranks=4):
    dist.init_process_group(backend, rank=0, world_size=ranks)
    torch.cuda.set_device(dist.get_rank())
    net = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Linear(32, 10)).cuda()
    model = nn.parallel.DistributedDataParallel(net, device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.rand(batch, 32)

    def step():
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        return total

    return step
"""


def taken(folder: Path, call: str) -> Capture:
    (folder / "mine.py").write_text(DDP)
    captured = capture_file(f"{folder}/mine.py:{call}", batch=16)
    assert verify(captured.graph) == []
    assert parse(print_graph(captured.graph)) == captured.graph
    return captured


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_gradients_are_reduced_in_buckets(tmp_path: Path, backend: str) -> None:
    captured = taken(tmp_path, f"train(backend={backend!r})")
    graph = captured.graph
    assert (graph.dims, graph.settings["ranks"]) == ({"B": 16}, 4)
    bucket, total = (op for op in graph.leaves() if op.name == "c10d.allreduce_")
    assert (bucket.phase, total.phase) == ("backward", "forward")
    parameters = [d.tensor for d in graph.tensors if d.role == "param"]
    assert bucket.inputs[0].numel == sum(tensor.numel for tensor in parameters)
    assert any("rank 0 of 4" in note for note in captured.notes)
    assert any("buckets are those of the first step" in note for note in captured.notes)
    assert predict(graph, "a100").step_time > predict(graph, "a100", ranks=1).step_time


def test_no_group_is_left(tmp_path: Path) -> None:
    taken(tmp_path, "train")
    assert not dist.is_initialized()
