"""Stages of pipelines, captured rank by rank and simulated together."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from irgraph.capture.live import capture_file
from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph
from irgraph.ir.ranks import peer_of
from irgraph.ops.verify import verify
from irgraph.predict.ranks import predict_ranks
from irgraph.text import parse, print_graph

FILE = Path(__file__).resolve().parents[2] / "examples" / "several_gpus.py"
RANKS = 3


def stages(kind: str, parts: int, ranks: int = RANKS, held: int = 1) -> list[Graph]:
    """Return the models of all ranks, wide enough that the host is not what they wait for."""
    said = f"kind='{kind}', parts={parts}, layers={2 if held == 1 else 1}, width=4096"
    program = f"{FILE}:pipeline({said}, stages={held})"
    found = [
        capture_file(program, batch=2048 * parts, symbolic=False, ranks=ranks, rank=rank).graph
        for rank in range(ranks)
    ]
    for graph in found:
        assert verify(graph) == []
        assert parse(print_graph(graph)) == graph
    return found


@pytest.mark.parametrize(("kind", "parts"), [("1f1b", 3), ("gpipe", 2)])
def test_the_bubble_is_that_of_the_schedule(kind: str, parts: int) -> None:
    """(p - 1) / (m + p - 1) of the step, of GPipe (arXiv:1811.06965) and of 1F1B as well.

    Stages are not quite equal: the first needs no gradient of its data, all have an optimizer.
    """
    graphs = stages(kind, parts)
    for rank, graph in enumerate(graphs):
        ways = [peer_of(op) for op in graph.leaves() if peer_of(op) is not None]
        neighbours = [other for other in (rank - 1, rank + 1) if 0 <= other < RANKS]
        assert sorted(ways) == sorted(
            (way, other) for other in neighbours for way in ("from", "to") for _ in range(parts)
        )
    found = predict_ranks(graphs, device="h100")
    ideal = (RANKS - 1) / (parts + RANKS - 1)
    assert abs(found.bubble - ideal) < 0.04
    assert len(found.meetings) == 2 * parts * (RANKS - 1)
    assert all(sum(wait > 0 for wait in meeting.waits) <= 1 for meeting in found.meetings)


@pytest.mark.parametrize(
    ("parts", "held"),
    [
        (4, 2),
        pytest.param(6, 2, marks=pytest.mark.slow),
        pytest.param(4, 4, marks=pytest.mark.slow),
    ],
)
def test_interleaved_stages_make_the_bubble_smaller(parts: int, held: int) -> None:
    """(p - 1) / (v m + p - 1) of the step with v stages a rank (arXiv:2104.04473, 2.2).

    Every pair of stages that follow each other lies on two ranks: 2 m sends for each.
    """
    found = predict_ranks(stages("interleaved", parts, 2, held), device="h100")
    assert abs(found.bubble - 1 / (held * parts + 1)) < 0.02
    assert len(found.meetings) == 2 * parts * (2 * held - 1)


@pytest.mark.slow
def test_weights_whose_gradients_wait_fill_the_bubble() -> None:
    """Zero bubble (arXiv:2401.10241) puts gradients of weights where a rank would wait."""
    zero, plain = (
        predict_ranks(stages(kind, 4, 2, 2), device="h100").bubble
        for kind in ("zero-bubble", "interleaved")
    )
    assert zero < 0.9 * plain


def test_ranks_that_send_more_than_is_received_do_not_match() -> None:
    graph = parse("""model "stage" { format = 2  ranks = 2  rank = 0 }

device @gpu0 "h100"
stream comm_world_to_1 @gpu0
param %x : f32[1024] in $x

c10d.send([%x], process_group = "world", dst = 1, tag = 0) on main/comm_world_to_1
""")
    text = print_graph(graph).replace("_to_1", "_from_0")
    text = text.replace("send([%x]", "recv_([%x!]").replace("dst = 1", "src = 0")
    other = parse(text.replace("rank = 0", "rank = 1"))
    (meeting,) = predict_ranks([graph, other], device="h100").meetings
    assert meeting.name == "send to 1, 4096 B"
    twice = replace(graph, ops=graph.ops * 2)
    with pytest.raises(IrgraphError, match="different numbers of collectives"):
        predict_ranks([twice, other], device="h100")
    larger = parse(print_graph(other).replace("1024", "2048"))
    with pytest.raises(IrgraphError, match="ranks do not match"):
        predict_ranks([graph, larger], device="h100")


PROGRAM = """
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, ScheduleInterleaved1F1B


def train(batch, device, stages=1):
    dist.init_process_group("nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    card = torch.device("cuda", rank)
    parts = []
    for index in range(rank, ranks * stages, ranks):
        layer = torch.nn.Linear(8 + index, 9 + index).to(card)
        parts.append(PipelineStage(layer, index, ranks * stages, card))
    loss = torch.nn.functional.mse_loss
    if stages == 1:
        schedule = ScheduleGPipe(parts[0], 2, loss_fn=loss)
    else:
        schedule = ScheduleInterleaved1F1B(parts, ranks, loss_fn=loss)
    data = (torch.rand(batch, 8, device=card),) if rank == 0 else ()
    target = torch.rand(batch, 8 + ranks * stages, device=card) if rank == ranks - 1 else None
    return lambda: schedule.step(*data, target=target)
"""

SENDERS = ("send", "recv_")


def exchanged_widths(graph: Graph) -> Counter[tuple[tuple[str, int] | None, int]]:
    """Count the messages of a rank by peer and width."""
    messages = [op for op in graph.leaves() if op.base in SENDERS]
    return Counter((peer_of(op), int(op.inputs[0].shape[1])) for op in messages)


@pytest.mark.parametrize("stages", [1, 2])
def test_stages_without_shapes_get_those_of_earlier_ranks(tmp_path: Path, stages: int) -> None:
    """Each stage has another width, so a wrong neighbour would give another shape."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    graphs = [
        capture_file(f"{file}:train(stages={stages})", batch=6, ranks=3, rank=rank).graph
        for rank in range(3)
    ]
    assert len(predict_ranks(graphs, device="h100").meetings) > 0
    for rank, graph in enumerate(graphs):
        expected: Counter[tuple[tuple[str, int] | None, int]] = Counter()
        for stage in range(rank, 3 * stages, 3):
            for neighbour, width in ((stage - 1, 8 + stage), (stage + 1, 9 + stage)):
                if 0 <= neighbour < 3 * stages:
                    count = 2 if stages == 1 else 3
                    expected[("to", neighbour % 3), width] += count
                    expected[("from", neighbour % 3), width] += count
        assert exchanged_widths(graph) == expected


def test_a_program_that_chooses_its_rank_is_not_run_as_others(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    program = PROGRAM.replace('"nccl"', '"nccl", rank=1, world_size=3')
    file.write_text(program.replace('"cuda", rank', '"cuda"'))
    with pytest.raises(IrgraphError, match="stage 1 of the pipeline asks its neighbours"):
        capture_file(f"{file}:train", batch=6)


LOOP = (
    PROGRAM
    + """

if __name__ == "__main__":
    step = train(6, "cuda")
    rows = torch.utils.data.DataLoader(torch.rand(60, 8), batch_size=6)
    for _ in rows:
        step()
"""
)


def test_micro_batches_of_a_loop_have_fixed_sizes(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(LOOP)
    captured = capture_file(str(file), ranks=3, rank=2, step_at="batch")
    assert not captured.graph.dims
    assert any("micro-batches have fixed sizes" in note for note in captured.notes)
    assert sum(op.base == "recv_" for op in captured.graph.leaves()) == 2
