"""A sparse tensor holds the memory of its values: who writes those waits for its readers."""

from __future__ import annotations

from pathlib import Path

from irgraph.api import rewrite
from irgraph.capture.live import capture_file
from irgraph.execute import compare
from irgraph.ir.dependence import dependences
from irgraph.ir.graph import Graph

PROGRAM = """
import torch
from torch import nn

def train(batch, device):
    torch.manual_seed(0)
    model = nn.ModuleDict({
        "e": nn.Embedding(50, 8, sparse=True), "b": nn.EmbeddingBag(40, 8, sparse=True, mode="sum"),
    }).to(device)
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)
    i, j = torch.arange(batch), torch.arange(3 * batch).view(batch, 3)

    def step():
        optimizer.zero_grad()
        loss = (model["e"](i.to(device)) * model["b"](j.to(device))).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step.model = model
    return step
"""


def taken(folder: Path) -> Graph:
    (folder / "sparse.py").write_text(PROGRAM)
    return capture_file(f"{folder}/sparse.py:train", batch=4).graph


def test_a_sparse_tensor_lies_where_its_values_do(tmp_path: Path) -> None:
    graph = taken(tmp_path)
    made = [op for op in graph.leaves() if op.base == "_sparse_coo_tensor_with_dims_and_tensors"]
    assert len(made) >= 4
    for op in made:
        values = op.attributes["values"]
        assert (op.outputs[0].buffer, op.outputs[0].offset) == (values.buffer, values.offset)


STACKED = """
import torch
from torch import nn

def train(batch, device):
    table = nn.Embedding(50, 8, sparse=True).to(device)
    other = torch.randn(8, device=device)
    i = torch.arange(batch)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

    def step():
        rows = table(i.to(device))
        torch.stack([other.expand_as(rows), rows], 1).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
"""


def test_values_within_other_memory_are_those_of_the_gradient(tmp_path: Path) -> None:
    (tmp_path / "stacked.py").write_text(STACKED)
    captured = capture_file(f"{tmp_path}/stacked.py:train", batch=4)
    assert not any("body left out" in note for note in captured.notes)
    assert [d.tensor.dtype for d in captured.graph.tensors if d.role == "input"][1:] == ["f32"]
    assert not any(d.tensor.strides == (0, 0) for d in captured.graph.tensors)
    assert compare(captured.graph, captured.graph).same


def test_its_readers_come_before_writes_of_the_values(tmp_path: Path) -> None:
    leaves = list(taken(tmp_path).leaves())
    found = {(d.before, d.after) for d in dependences(leaves)}
    waited = 0
    for place, op in enumerate(leaves):
        sparse = [t for t in op.inputs if t.strides and not any(t.strides) and t.numel > 1]
        for tensor in sparse if op.base == "add_" else ():
            later = range(place + 1, len(leaves))
            writes = (
                i
                for i in later
                if leaves[i].base == "add_"
                and leaves[i].inputs
                and leaves[i].inputs[0].buffer == tensor.buffer
            )
            after = next(writes, None)
            if after is not None:
                assert (place, after) in found
                waited += 1
    assert waited >= 2


def test_fused_updates_leave_what_the_step_leaves(tmp_path: Path) -> None:
    graph = taken(tmp_path)
    after = rewrite(graph, "fuse-optimizer").graph
    assert compare(graph, after).same
