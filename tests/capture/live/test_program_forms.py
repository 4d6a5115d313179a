"""Programs that profile or compile themselves, make a step, move modules or shard them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from irgraph.capture.common.result import Capture
from irgraph.capture.emulate.patches import UNCOMPILED
from irgraph.capture.emulate.profilers import PROFILED
from irgraph.capture.live import capture_file
from irgraph.ops.verify import verify

HEAD = """
import os
import torch
from torch import nn

class Batches(torch.utils.data.Dataset):
    def __len__(self): return 640
    def __getitem__(self, i): return torch.ones(8)
"""

LOOP = """
model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(Batches(), batch_size=16)
"""

UPDATE = "optimizer.zero_grad(); model(x.cuda()).sum().backward(); optimizer.step()"


def captured(folder: Path, text: str, name: str = "", ranks: int | None = None) -> Capture:
    (folder / "train.py").write_text(f"{HEAD}{text}")
    target = f"{folder}/train.py" + (f":{name}" if name else "")
    result = capture_file(target, batch=16 if "batch, device" in text else None, ranks=ranks)
    assert verify(result.graph) == []
    return result


def bases(result: Capture) -> Counter[str]:
    return Counter(leaf.base for leaf in result.graph.leaves())


def test_a_script_may_profile_itself(tmp_path: Path) -> None:
    text = f"""
def trace(p): p.export_chrome_trace("never.json")
schedule = torch.profiler.schedule(wait=1, warmup=1, active=2)
with torch.profiler.profile(schedule=schedule, on_trace_ready=trace) as p:
    for x in loader:
        {UPDATE}
        p.step()
print(p.key_averages().table())
"""
    result = captured(tmp_path, LOOP + text)
    assert bases(result)["addmm"] == 1
    assert result.graph.dims == {"B": 16}
    assert PROFILED in result.notes


@pytest.mark.parametrize(
    "body",
    [
        "m = nn.Linear(64, 64).cuda(); x = torch.randn(32, 64)\n"
        "    def step(): return m(x.cuda()).sum()\n    return step",
        "with torch.device('cuda'): m = nn.Linear(64, 64)\n    x = torch.randn(32, 64)\n"
        "    def step(): return m(x.to('cuda')).sum()\n    return step",
    ],
)
def test_a_function_without_arguments_may_return_a_step(tmp_path: Path, body: str) -> None:
    result = captured(tmp_path, f"def make():\n    {body}", "make")
    assert bases(result)["addmm"] == 1
    assert not bases(result).keys() & {"uniform_", "empty", "randn"}


def test_a_module_may_move_within_a_step(tmp_path: Path) -> None:
    text = """
def run():
    m = nn.Linear(64, 64).cuda()
    m(torch.ones(2, 64).cuda()).sum().backward()
"""
    counts = bases(captured(tmp_path, text, "run"))
    assert (counts["addmm"], counts["mm"], counts["_to_copy"]) == (1, 1, 3)


def test_a_function_reads_values_as_a_script_does(tmp_path: Path) -> None:
    text = """
def make(batch, device):
    seed = torch.get_rng_state()[:8].to("cuda").to("cpu").view(torch.uint64).item()
    m = nn.Linear(8, 8).to(device); x = torch.rand(batch, 8)
    def step(): m(x.to(device)).sum().backward()
    return step
"""
    assert bases(captured(tmp_path, text, "make"))["addmm"] == 1


def test_only_compiled_functions_that_run_are_noted(tmp_path: Path) -> None:
    loop = f"for x in loader:\n    {UPDATE}"
    unused = "other = torch.compile(nn.Linear(8, 8))\n@torch.compile\ndef f(x): return x\n"
    assert UNCOMPILED not in captured(tmp_path, f"{LOOP}{unused}{loop}").notes
    assert UNCOMPILED in captured(tmp_path, f"{LOOP}model = torch.compile(model)\n{loop}").notes
    used = "@torch.compile(fullgraph=True)\ndef f(x): return x.tanh()\n"
    assert UNCOMPILED in captured(tmp_path, f"{LOOP}{used}{loop}; f(x)").notes


def test_the_older_sharding_takes_the_number_of_a_card(tmp_path: Path) -> None:
    text = """
from torch.distributed.fsdp import FullyShardedDataParallel
def make(batch, device):
    torch.distributed.init_process_group("nccl")
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    model = FullyShardedDataParallel(net, device_id=torch.cuda.current_device())
    optimizer = torch.optim.AdamW(model.parameters()); x = torch.rand(batch, 64)
    def step():
        optimizer.zero_grad(); model(x.cuda()).sum().backward(); optimizer.step()
    return step
"""
    result = captured(tmp_path, text, "make", ranks=4)
    counts = bases(result)
    assert (counts["_allgather_base_"], counts["_reduce_scatter_base_"]) == (1, 1)
    assert counts["addmm"] == 2


def test_data_of_a_parameter_may_move(tmp_path: Path) -> None:
    move = "model = nn.Linear(8, 8)\nfor p in model.parameters(): p.data = p.data.cuda()\n"
    setup = LOOP.replace("model = nn.Linear(8, 8).cuda()\n", move)
    assert bases(captured(tmp_path, f"{setup}for x in loader:\n    {UPDATE}"))["addmm"] == 1
