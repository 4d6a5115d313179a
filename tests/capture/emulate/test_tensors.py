"""Tensors on an emulated card answer, and are made and moved, as on a real one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from irgraph.capture.common.result import Capture
from irgraph.capture.live import capture_file
from irgraph.execute import compare
from irgraph.ops.verify import verify

HEAD = """
import torch
from torch import nn

net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
side = torch.cuda.Stream(device="cuda")

for _ in range(20):
    x = torch.randn(4, 8).cuda()
"""

TAIL = """
    optimizer.zero_grad()
    y.sum().backward()
    optimizer.step()
"""


def captured(folder: Path, text: str, head: str = HEAD) -> Capture:
    body = "\n".join(f"    {line}" for line in text.strip().splitlines())
    (folder / "mine.py").write_text(f"{head}{body}{TAIL}")
    result = capture_file(f"{folder}/mine.py")
    assert verify(result.graph) == []
    assert compare(result.graph, result.graph).same
    return result


@pytest.mark.parametrize(
    "text",
    [
        "torch.cuda.synchronize(device=0)\ny = net(x)",
        "torch.cuda.current_stream(device='cuda').wait_stream(side)\ny = net(x)",
        "torch.accelerator.synchronize(device='cuda')\ny = net(x)",
        "x.record_stream(stream=side)\ny = net(x)",
        "torch.cuda.get_rng_state(device='cuda')\ny = net(x)",
        "assert x.get_device() == 0\ny = net(x + torch.arange(8).to(x.get_device()))",
        "y = net(x[:2]) if x.is_meta else net(x)",
        "assert x.type() == 'torch.cuda.FloatTensor'\ny = net(x)",
        "assert isinstance(x, torch.cuda.FloatTensor)\ny = net(x)",
        "y = net(torch.ones(4, 8).type('torch.cuda.FloatTensor'))",
        "y = net(torch.ones(4, 8).type(torch.cuda.FloatTensor))",
        "y = net(x) + torch.cuda.FloatTensor([1.0]) + torch.cuda.FloatTensor(8)",
        "y = net(x)\nprint(f'{y.sum():.4f} {y.sum()}')",
        "assert x.__cuda_array_interface__['shape'] == (4, 8)\ny = net(x)",
        "y = net(torch.tensor([[1.0] * 8] * 4, pin_memory=True).cuda())",
        "y = net(torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)))",
        "torch.cuda.cudart().cudaProfilerStart()\ny = net(x)",
        "assert torch.backends.cudnn.version() > 0\ny = net(x)",
        "assert torch.version.cuda.split('.')\ny = net(x)",
        "y = nn.parallel.scatter(net(x), [0])[0]",
    ],
)
def test_programs_run_as_on_a_card(tmp_path: Path, text: str) -> None:
    graph = captured(tmp_path, text).graph
    linear = next(leaf for leaf in graph.leaves() if leaf.base == "addmm")
    assert linear.outputs[0].shape == (4, 8)
    assert linear.outputs[0].device == "gpu0"


def test_one_card_in_data_parallel_is_the_module(tmp_path: Path) -> None:
    head = HEAD.replace("\nfor", "parallel = nn.DataParallel(net)\nfor")
    graph = captured(tmp_path, "y = parallel(torch.randn(4, 8))", head).graph
    bases = [leaf.base for leaf in graph.leaves()]
    assert bases.count("_to_copy") == 2  # the batch, and the unused one
    assert bases.count("addmm") == 2


def test_saved_tensors_are_copied_to_the_host_and_back(tmp_path: Path) -> None:
    text = "with torch.autograd.graph.save_on_cpu(pin_memory=True):\n    y = net(x)"
    graph = captured(tmp_path, text).graph
    leaves = list(graph.leaves())
    down = [leaf for leaf in leaves if leaf.base == "copy_"]
    assert len(down) == 4  # two inputs of layers, a result of ReLU, a weight
    assert {leaf.operands[0].device for leaf in down} == {"cpu"}  # type: ignore[union-attr]
    (relu,) = (i for i, leaf in enumerate(leaves) if leaf.base == "relu")
    saved = leaves[relu].outputs[0]
    assert min(i for i, leaf in enumerate(leaves) if leaf in down and saved in leaf.inputs) > relu
    up = [leaf for leaf in leaves if leaf.base == "_to_copy" and leaf.phase == "backward"]
    assert len(up) == 4
    assert {declared.role for declared in graph.tensors} == {"param"}


def test_torch_is_as_before_afterwards(tmp_path: Path) -> None:
    versions = torch.version.cuda, torch.backends.cudnn.version()
    captured(tmp_path, "y = net(x)")
    assert (torch.version.cuda, torch.backends.cudnn.version()) == versions
    assert torch.rand(2, device="meta").is_meta
    assert torch.rand(2, device="meta").get_device() == -1
