"""Captured ranks call the collectives that torch's own counter sees in the same programs."""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from irgraph.capture.emulate.environment import Process
from irgraph.capture.live import capture_file
from irgraph.ir.graph import Graph
from irgraph.ir.ranks import group_of, groups_at, is_collective
from irgraph.ops.verify import verify
from irgraph.predict.prediction import predict
from irgraph.predict.ranks import predict_ranks, rank_groups
from irgraph.text import parse, print_graph

FILE = Path(__file__).resolve().parents[2] / "examples" / "several_gpus.py"
PROCESS = Process(8, 5)
PROGRAMS = {
    "ddp": {"bucket": 8},
    "zero": {"bucket": 8},
    "fsdp": {"layers": 2, "width": 64, "length": 32},
    "tensor_parallel": {"layers": 2, "width": 64, "length": 32},
    "mesh": {"layers": 1, "width": 64, "length": 32},
}
"""Options of the examples that are quick."""


class Counting(CommDebugMode):  # type: ignore[misc]
    """Torch's counter of collectives, which also notes how many bytes each is given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: Counter[tuple[str, int]] = Counter()

    def __enter__(self) -> Self:
        """Count only: what follows modules forbids in-place activations."""
        self.advanced_module_tracker.name = "Global"
        self.advanced_module_tracker.module_parents_dict["Global"] = set()
        TorchDispatchMode.__enter__(self)
        return self

    def __exit__(self, *error: Any) -> None:
        TorchDispatchMode.__exit__(self, *error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.get_total_counts()
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if self.get_total_counts() > before:
            tensors = [t for t in torch.utils._pytree.tree_leaves(args) if torch.is_tensor(t)]
            self.given[func._schema.name.partition("::")[2], sum(t.nbytes for t in tensors)] += 1
        return made


@contextmanager
def alone() -> Iterator[None]:
    """Run programs as one rank of torch's group that exchanges nothing, on the CPU."""
    environment = PROCESS.environment()
    rank, ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        with (
            mock.patch.dict("os.environ", environment),
            mock.patch.object(dist, "init_process_group"),
            mock.patch("sys.path", [str(FILE.parent), *sys.path]),
        ):
            yield
    finally:
        dist.destroy_process_group()


def reduce_bucket(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    dist.all_reduce(bucket.buffer(), async_op=True)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


reduce_bucket.__annotations__.clear()  # torch would read texts as other types


def counted(name: str, options: dict[str, int]) -> Counter[tuple[str, int]]:
    with alone():
        step = runpy.run_path(str(FILE))[name](8, "cpu", **options)
        if name in ("ddp", "zero"):  # torch's own hook fails on what the group gives
            step.model.register_comm_hook(None, reduce_bucket)
        for _ in range(2):  # in its second one DDP makes new buckets, of which it tells all ranks
            step()
        with Counting() as counting:
            step()
    return counting.given


def captured(name: str, options: dict[str, int]) -> Graph:
    words = ", ".join(f"{key}={value}" for key, value in options.items())
    found = capture_file(
        f"{FILE}:{name}({words})", batch=8, symbolic=False, ranks=PROCESS.ranks, rank=PROCESS.rank
    )
    assert verify(found.graph) == []
    assert parse(print_graph(found.graph)) == found.graph
    return found.graph


@pytest.mark.parametrize("name", PROGRAMS)
def test_collectives_are_those_that_torch_counts(name: str) -> None:
    graph = captured(name, PROGRAMS[name])
    found = Counter(
        (op.base, sum(tensor.nbytes for tensor in op.inputs))
        for op in graph.walk()
        if is_collective(op)
    )
    assert found == counted(name, PROGRAMS[name])
    reductions = [k for k in predict(graph, "h100").kernels() if k.family == "collective"]
    assert len(reductions) == sum(found.values())


def test_a_mesh_has_the_groups_of_each_rank() -> None:
    """Two machines of two ranks: layers are shared inside them, shards lie across them.

    One model's groups say those of the other ranks, and all ranks' collectives meet in them; those
    across machines take longer than on one machine, the others as long.
    """
    program = f"{FILE}:mesh(layers=1, width=64, length=32)"
    graphs = [
        capture_file(program, batch=8, symbolic=False, ranks="2x2", rank=rank).graph
        for rank in range(4)
    ]
    groups = [
        {"dp": (rank % 2, rank % 2 + 2), "tp": (rank // 2 * 2, rank // 2 * 2 + 1)}
        for rank in range(4)
    ]
    assert rank_groups(graphs) == [groups_at(graphs[0], rank) for rank in range(4)] == groups
    counts = [
        Counter((op.base, group_of(op)) for op in g.leaves() if is_collective(op)) for g in graphs
    ]
    assert all(count == counts[0] for count in counts)
    found = predict_ranks(graphs, device="h100")
    calls = sum(counts[0].values())
    assert len(found.meetings) == 2 * calls  # each in two groups of two
    one = predict_ranks(graphs, device="h100", ranks=4)  # all on one machine
    times, flat = ({m.name: m.transfer for m in r.meetings} for r in (found, one))
    slower = {name for name in times if times[name] > 1.2 * flat[name]}
    assert slower == {name for name in times if "65536" not in name and "256 B" not in name}
    assert all(times[name] == flat[name] for name in times.keys() - slower)


def test_each_parameter_is_updated_by_one_rank() -> None:
    """As ZeRO-1 does: a rank updates its parameters, and every rank sends its own to the others."""
    updated: Counter[str] = Counter()
    for rank in range(2):
        found = capture_file(f"{FILE}:zero(bucket=8)", batch=2, symbolic=False, ranks=2, rank=rank)
        graph = found.graph
        params = {d.tensor.buffer: d.label for d in graph.tensors if d.role == "param"}
        leaves = [op for op in graph.leaves() if op.phase == "optimizer"]
        names = [op.name for op in leaves if op.base == "broadcast_"]
        assert len(names) == len(params)
        for buffer, label in params.items():
            touching = [op for op in leaves if buffer in {t.buffer for t in op.inputs}]
            updated[label] += any(op.base.startswith("_foreach") for op in touching)
    assert set(updated.values()) == {1}


def test_parameters_are_gathered_beside_what_is_computed() -> None:
    """As FSDP2 does: two streams to gather, one to reduce, and the next layer's before this one."""
    graph = captured("fsdp", {"layers": 4})
    leaves = list(graph.leaves())
    copies = [op for op in leaves if op.base == "all_gather_copy_in"]
    gathers = [op for op in leaves if op.base == "_allgather_base_"]
    scatters = [op for op in leaves if op.base == "_reduce_scatter_base_"]
    streams = {op.stream for ops in (copies, gathers, scatters) for op in ops}
    assert len(streams) == 3 and "" not in streams
    written = [{t.name for t in op.inputs if t.name in op.written} for op in copies]
    assert written == [{t.name for t in op.inputs if t.name in op.written} for op in gathers]
    priced = predict(graph, "h100")
    assert not [op for op in priced.timeline.unknown if op.name.startswith("fsdp")]
    in_backward = [op for op in gathers if op.thread == "backward"]
    assert (len(gathers), len(in_backward), len(scatters)) == (9, 4, 5)
