"""Programs of several processes, captured in one that does not communicate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from irgraph.capture.common.result import Capture
from irgraph.capture.live import capture, capture_file
from irgraph.diagnostics import IrgraphError
from irgraph.ops.verify import verify
from irgraph.predict.prediction import predict
from irgraph.schedule.memory.peak import peak_memory
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


ASKING = """
import os
import torch
import torch.distributed as dist
from torch import nn

def train(batch, device, layers=4, hook=False, wide=600):
    dist.init_process_group("nccl")
    card = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(card)
    net = nn.Sequential(*(nn.Linear(wide, wide) for _ in range(layers))).to(card)
    model = nn.parallel.DistributedDataParallel(net, device_ids=[card], bucket_cap_mb=2)
    if hook:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    x = torch.rand(batch, wide)

    def step():
        model.zero_grad()
        model(x.to(card)).sum().backward()

    return step

def talk(batch, device, what="async"):
    dist.init_process_group("nccl")
    pair = dist.new_group([dist.get_rank() ^ 1, dist.get_rank()])
    x, y = torch.rand(batch, 8, device="cuda"), torch.rand(batch, 8, device="cuda")

    def step():
        if what == "barrier":
            dist.barrier()
            return x + y
        work = dist.all_reduce(x, group=pair, op=dist.ReduceOp.MAX, async_op=True)
        z = y + y
        if what == "async":
            work.wait()
        return x + z

    return step
"""


def taken(folder: Path, call: str, program: str = DDP, **options: Any) -> Capture:
    (folder / "mine.py").write_text(program)
    captured = capture_file(f"{folder}/mine.py:{call}", batch=16, **options)
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
    assert bucket.stream == "comm_world"
    assert predict(graph, "a100").step_time > predict(graph, "a100", ranks=1).step_time


def test_no_group_is_left(tmp_path: Path) -> None:
    taken(tmp_path, "train")
    assert not dist.is_initialized()


def names(captured: Capture) -> list[str]:
    return [op.name for op in captured.graph.leaves()]


def test_a_rank_of_a_world_that_the_caller_asks_for(tmp_path: Path) -> None:
    graph = taken(tmp_path, "train", ASKING, ranks="2x4", rank=6).graph
    assert (graph.settings["ranks"], graph.settings["rank"]) == ("2x4", 6)


def test_buckets_are_reduced_beside_the_backward_pass(tmp_path: Path) -> None:
    graph = taken(tmp_path, "train", ASKING, ranks=8).graph
    leaves = list(graph.leaves())
    reductions = [op for op in leaves if op.name == "c10d.allreduce_"]
    assert [op.inputs[0].numel for op in reductions] == [2 * 600 * 601] * 2
    assert {op.stream for op in reductions} == {"comm_world"}
    ends = [leaves[leaves.index(op) + 1].outputs[0] for op in reductions]
    waits = [op.inputs[0] for op in leaves if op.name == "sync.wait" and not op.stream]
    assert waits == ends  # in order, behind all of backward
    first = next(i for i, op in enumerate(leaves) if op.inputs[:1] == (ends[0],))
    assert not any(op.name == "aten.mm" for op in leaves[first:])
    priced = predict(graph, "a100")
    alone = sum(kernel.time for kernel in priced.kernels() if kernel.family == "collective")
    assert priced.step_time - predict(graph, "a100", ranks=1).step_time < 0.5 * alone


def test_a_hook_of_the_program_halves_what_is_sent(tmp_path: Path) -> None:
    graph = taken(tmp_path, "train(hook=True)", ASKING, ranks=8).graph
    reductions = [op for op in graph.leaves() if op.name == "c10d.allreduce_"]
    assert {op.inputs[0].dtype for op in reductions} == {"f16"}


def test_work_is_waited_for_where_the_program_does(tmp_path: Path) -> None:
    captured = taken(tmp_path, "talk", ASKING, ranks=4, rank=3)
    reduction = next(op for op in captured.graph.ops if op.name == "c10d.allreduce_")
    assert reduction.attributes["reduce_op"] == "max"
    group = reduction.attributes["process_group"]
    assert captured.graph.settings["groups"] == f"{group}=2,3"
    called = names(captured)
    assert called[called.index("c10d.allreduce_") :] == [
        "c10d.allreduce_",
        "sync.record",
        "aten.add",
        "sync.wait",
        "aten.add",
    ]
    (kernel,) = [k for k in predict(captured.graph, "a100").kernels() if k.family == "collective"]
    assert kernel.name.startswith("all_reduce of 2,")


def test_work_that_nobody_waits_for_is_noted(tmp_path: Path) -> None:
    captured = taken(tmp_path, "talk(what='never')", ASKING, ranks=4)
    assert any("1 collectives" in note and "waits" in note for note in captured.notes)


def test_a_barrier_holds_up_the_host(tmp_path: Path) -> None:
    assert "sync.stream" in names(taken(tmp_path, "talk(what='barrier')", ASKING, ranks=4))


@pytest.mark.parametrize(
    ("call", "options", "words"),
    [
        ("train", {"ranks": 8}, "sets world_size=4, but 8"),
        ("train(ranks=8)", {"ranks": 8, "rank": 3}, "sets rank=0, but 3"),
        ("train", {"ranks": "2x8", "rank": 16}, "no rank 16 among 16"),
        ("train", {"rank": 1}, "without ranks"),
        ("train", {"ranks": 4, "device": "cpu"}, "on meta"),
        ("alone", {"ranks": 4}, "starts no process group"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, call: str, options: dict[str, Any], words: str
) -> None:
    alone = DDP + "\n\ndef alone(batch, device):\n    return lambda: torch.rand(batch).cuda()\n"
    with pytest.raises(IrgraphError, match=words):
        taken(tmp_path, call, alone, **options)


def test_another_card_of_the_machine_is_refused(tmp_path: Path) -> None:
    program = ASKING.replace('int(os.environ["LOCAL_RANK"])', "0")
    with pytest.raises(IrgraphError, match="one device"):
        taken(tmp_path, "train", program, ranks=8, rank=1)


def test_stages_of_pipelines_are_told_shapes_or_refused() -> None:
    """Else they ask other ranks, of which there are none."""
    from torch import nn
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    def step() -> None:
        dist.init_process_group("nccl")
        stage = PipelineStage(nn.Linear(4, 4).to("meta"), 1, 2, torch.device("meta"))
        ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss).step(target=torch.zeros(4, 4))

    with pytest.raises(IrgraphError, match="stage 1 of the pipeline asks its neighbours"):
        capture(step, ranks=2, rank=1)

    def asking() -> None:
        dist.init_process_group("nccl")
        dist.recv_object_list([None], src=1)

    with pytest.raises(IrgraphError, match="objects that other ranks send are unknown"):
        capture(asking, ranks=2, rank=0)


SHARDED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

def train(batch, device, kind="SGD", ranks=0, **options):
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)).to(device)
    if ranks:
        fully_shard(model, mesh=init_device_mesh("cuda", (ranks,)))
    options = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options)
    x = torch.rand(batch, 32)

    def step():
        optimizer.zero_grad()
        model(x.to(device)).sum().backward()
        optimizer.step()

    return step
"""


@pytest.mark.parametrize("kind", ["SGD", "Adagrad", "RMSprop"])
def test_how_dtensor_finds_forms_is_no_part_of_the_step(kind: str, tmp_path: Path) -> None:
    """Optimizers that call other ops from their second step on do what they do to whole tensors."""
    file = tmp_path / "sharded.py"
    file.write_text(SHARDED)
    whole = capture_file(f"{file}:train(kind='{kind}')", batch=8, symbolic=False).graph
    parts = capture_file(
        f"{file}:train(kind='{kind}', ranks=4)", batch=8, symbolic=False, ranks=4
    ).graph
    calls = [
        [
            leaf.name
            for op in graph.ops
            if op.name.startswith("Optimizer.step")
            for leaf in op.leaves()
        ]
        for graph in (whole, parts)
    ]
    assert calls[0] == calls[1] != []


UNNAMED_MESH = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)).cuda()
for layer in model:
    fully_shard(layer, MESH)
fully_shard(model, MESH)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.rand(8, 32, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_default_mesh_is_that_of_the_card(tmp_path: Path) -> None:
    """Without a mesh, ``fully_shard`` asks torch for the accelerator, not for the CPU."""
    graphs = []
    for mesh in ("", 'mesh=init_device_mesh("cuda", (2,))'):
        file = tmp_path / "train.py"
        file.write_text(UNNAMED_MESH.replace("MESH", mesh).replace(", )", ")"))
        graphs.append(capture_file(str(file), ranks=2, rank=0).graph)
    first, second = ([op.name for op in graph.leaves()] for graph in graphs)
    assert first == second
    assert first.count("c10d._reduce_scatter_base_") == 2


INITIALISED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
with torch.device("meta"):
    model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 32), nn.LayerNorm(32))
for layer in model:
    fully_shard(layer)
fully_shard(model)
model.to_empty(device="cuda")
for layer in model:
    layer.reset_parameters()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randint(0, 64, (8, 4), device="cuda")).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_parameters_are_initialised_after_their_distribution(tmp_path: Path) -> None:
    """As pytorch/examples does: random numbers in place, on a ``DTensor`` of the card."""
    file = tmp_path / "train.py"
    file.write_text(INITIALISED)
    graph = capture_file(str(file), ranks=2, rank=0).graph
    names = [op.name for op in graph.leaves()]
    assert names.count("c10d._reduce_scatter_base_") == 3
    assert names.count("_c10d_functional.all_reduce") == 1
    assert not any("uniform" in name or "normal_" in name for name in names)
    # the shards on the card replace those on meta
    assert "inputs" not in peak_memory(graph).by_kind


SPAWNED = """
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def main(rank, world_size, width):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    model = DistributedDataParallel(nn.Linear(width, 2).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.rand(8, width, device=rank)).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    count = torch.cuda.device_count()
    mp.spawn(main, args=(count, 16), nprocs=count)
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_that_a_program_spawns_are_run_one_by_one(tmp_path: Path, rank: int) -> None:
    file = tmp_path / "train.py"
    file.write_text(SPAWNED)
    graph = capture_file(str(file), ranks=2, rank=rank).graph
    names = [op.name for op in graph.leaves()]
    assert names.count("c10d.allreduce_") == 1
    assert graph.settings["ranks"] == 2 and graph.settings["rank"] == rank
