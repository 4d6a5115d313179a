"""Captured pipelines, proven by running all ranks in one process, and what does not fit."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from irgraph.capture.live import capture_file
from irgraph.diagnostics import IrgraphError
from irgraph.execute import compare_ranks
from irgraph.ir.edit import Edit
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.text import parse, print_graph

FILE = Path(__file__).resolve().parents[2] / "examples" / "several_gpus.py"


@cache
def whole(layers: int) -> Graph:
    """Return the step of the whole model."""
    return capture_file(f"{FILE}:whole(layers={layers}, width=6)", batch=6, symbolic=False).graph


@cache
def stages(kind: str, ranks: int, held: int = 1) -> tuple[Graph, ...]:
    """Return the models of all ranks, one layer a stage, in three micro-batches."""
    program = f"{FILE}:pipeline(kind='{kind}', parts=3, layers=1, width=6, stages={held})"
    return tuple(
        capture_file(program, batch=6, symbolic=False, ranks=ranks, rank=rank).graph
        for rank in range(ranks)
    )


def edited(graph: Graph, old: str, new: str) -> Graph:
    """Return a graph with its text changed everywhere."""
    text = print_graph(graph)
    assert old in text
    return parse(text.replace(old, new))


@pytest.mark.parametrize(
    ("kind", "ranks", "held"),
    [
        ("1f1b", 3, 1),
        ("gpipe", 2, 1),
        ("interleaved", 2, 2),
        pytest.param("zero-bubble", 2, 3, marks=pytest.mark.slow),
    ],
)
def test_ranks_leave_what_the_whole_step_leaves(kind: str, ranks: int, held: int) -> None:
    result = compare_ranks(whole(ranks * held), stages(kind, ranks, held))
    assert result.same, str(result)
    assert len(result.compared) == 2 * ranks * held and not result.exact
    assert all(one.kind == "param" and one.changed for one in result.compared)
    assert f"{ranks} ranks, {6 * (ranks * held - 1)} sends received" in result.notes


@pytest.mark.parametrize(
    ("old", "new"), [("alpha = -0.1", "alpha = -0.11"), ("other = 3", "other = 2")]
)
def test_a_rank_that_computes_something_else_differs(old: str, new: str) -> None:
    first, last = stages("gpipe", 2)
    result = compare_ranks(whole(2), [first, edited(last, old, new)])
    wrong = {one.label for one in result.compared if not one.same}
    assert not result.same and wrong == {"2.weight", "2.bias"}


def _sent(graph: Graph) -> list[Op]:
    return [op for op in graph.leaves() if op.name == "c10d.send"]


def test_sends_that_change_places_differ() -> None:
    """Micro-batches then meet the wrong targets; only values tell."""
    first, last = stages("gpipe", 2)
    one, two = _sent(first)[:2]
    edit = Edit(first)
    for op, other in ((one, two), (two, one)):
        edit.insert(replace(op, operands=other.operands), before=two)
    edit.remove(one)
    edit.remove(two)
    assert not compare_ranks(whole(2), [edit.commit(), last]).same


def test_what_ranks_send_must_be_received() -> None:
    first, last = stages("gpipe", 2)
    less, more = Edit(first), Edit(first)
    less.remove(_sent(first)[0])
    more.insert(replace(_sent(first)[0]), before=_sent(first)[0])
    with pytest.raises(IrgraphError, match="rank 1 is at a receive from rank 0"):
        compare_ranks(whole(2), [less.commit(), last])
    with pytest.raises(IrgraphError, match="rank 0 sends 1 times more to rank 1"):
        compare_ranks(whole(2), [more.commit(), last])
    with pytest.raises(IrgraphError, match="%param1, a param that has no name and is not received"):
        without = Edit(last)
        without.remove(next(op for op in last.leaves() if op.name == "c10d.recv_"))
        compare_ranks(whole(2), [first, without.commit()])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"2.weight"', '"0.weight"', "'0.weight' is on ranks 0 and 1, which exchange no"),
        ('"2.weight"', '"4.weight"', "rank 1 starts from '4.weight', which the whole step lacks"),
        ('"2.weight"', "", "rank 1 starts from %t_2_weight, a param that has no name"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(old: str, new: str, said: str) -> None:
    first, last = stages("gpipe", 2)
    with pytest.raises(IrgraphError, match=said):
        compare_ranks(whole(2), [first, edited(last, old, new)])


def test_inputs_that_cannot_be_told_apart_are_refused() -> None:
    more = edited(
        whole(2), "param %t_0_weight", "input %other : f32[6, 6] @cpu in $more\nparam %t_0_weight"
    )
    with pytest.raises(IrgraphError, match="%host1 and %other of that type: which it is"):
        compare_ranks(more, stages("gpipe", 2))


def test_all_ranks_are_needed() -> None:
    with pytest.raises(IrgraphError, match="models of all ranks are needed"):
        compare_ranks(whole(2), stages("gpipe", 2)[::-1])
