"""``capture``: what follows one another is launched at once, unless the host takes part in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from irgraph.api import rewrite
from irgraph.capture.live import capture as captured
from irgraph.diagnostics import IrgraphError
from irgraph.execute import compare
from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from irgraph.ops.verify import verify
from irgraph.predict.prediction import predict
from irgraph.text import parse
from irgraph.verbs.capture import LAUNCH, capture
from tests.execute.models import conv_step, eager_step, transformer_step

START = """model "m" {{ format = 2 }}

device @gpu0 "v100"
stream side @gpu0
input %d : f32[8] @cpu in $d
input %x : f32[8] in $x
input %m : bool[8] in $m
param %w : f32[8] in $w

{}
return %w
"""
PAIR = "%{0} = aten.neg(%x) : f32[8] in ${0}\naten.add_(%w!, %{0})\n"


def graph_of(text: str) -> Graph:
    return parse(START.format(text))


def launches(graph: Graph) -> list[list[str]]:
    return [[op.base for op in one.body] for one in graph.walk() if one.name == LAUNCH]


def made(text: str) -> tuple[Graph, list[list[str]]]:
    """Return what becomes of a step, which must compute the same, and what each graph holds."""
    before = graph_of(text)
    after = rewrite(before, "cuda-graph").graph
    assert verify(after) == []
    result = compare(before, after)
    assert result.same, str(result)
    return after, launches(after)


def test_ops_in_a_row_are_one_launch() -> None:
    after, graphs = made(PAIR.format("a") + PAIR.format("b"))
    assert graphs == [["neg", "add_", "neg", "add_"]]
    assert rewrite(after, "cuda-graph").graph == after


@pytest.mark.parametrize(
    ("between", "why"),
    [
        ("sync.device()", "the host waits for it"),
        ("%s = aten.select(%w, 0, 0) : f32[] in $w\naten.item(%s)", "the host reads it"),
        ("%n = aten.nonzero(%x) : i64[3, 1] in $n", "the host reads the sizes of its results"),
        ("%n = aten.index(%x, [%m]) : f32[3] in $n", "the host reads the sizes of its results"),
        ("aten.add_(%d!, 1)", "the host takes part in it"),
        ("%n = aten._to_copy(%d, device = @gpu0) : f32[8] in $n", "it copies from the host's"),
        ("my.call(%x)", "its effects are unknown"),
    ],
)
def test_what_the_host_takes_part_in_stays_outside(between: str, why: str) -> None:
    before = graph_of(PAIR.format("a") + between + "\n" + PAIR.format("b"))
    done = capture(before)
    assert any(why in reason.reason for _, reason in done.excluded), done.excluded
    held = {op.name for launch in done.launches for op in launch.leaves()}
    assert held - {"aten.select"} == {"aten.neg", "aten.add_"}


def test_numbers_that_may_follow_from_what_the_host_read_are_not_repeated() -> None:
    before = graph_of(
        "%s = aten.select(%w, 0, 0) : f32[] in $w\naten.item(%s)\n" + PAIR.format("a")
    )
    done = capture(before)
    assert not done.launches
    assert any("follow from what the host read" in why.reason for _, why in done.excluded)


def test_what_ops_outside_make_is_copied_in_and_may_not_be_written() -> None:
    copy = "%n = aten._to_copy(%d, device = @gpu0) : f32[8] in $n\n"
    view = "%v = aten.view(%n, size = [2, 4]) : f32[2, 4] in $n\n%s = aten.sum(%v) : f32[] in $s\n"
    after, graphs = made(copy + view + "aten.add_(%w!, %s)")
    assert graphs == [["view", "sum", "add_"]]
    assert [op.base for op in after.ops] == ["_to_copy", "copy_", "graph_launch"]
    assert after.tensors[-1].role == "state"
    _, graphs = made(copy + PAIR.format("a") + "aten.relu_(%n!)\n" + PAIR.format("b"))
    assert graphs == [["neg", "add_"], ["neg", "add_"]]


def test_events_stay_within_a_graph() -> None:
    inside = (
        "%e = sync.record() : u8[] @cpu in $e\nsync.wait(%e) on main/side\n"
        "%b = aten.neg(%x) : f32[8] in $b on main/side\n"
        "%f = sync.record() : u8[] @cpu in $f on main/side\nsync.wait(%f)\naten.add_(%w!, %b)\n"
    )
    assert made(inside + PAIR.format("a"))[1] == [
        ["record", "wait", "neg", "record", "wait", "add_", "neg", "add_"]
    ]
    outside = inside.replace("sync.wait(%f)", "aten.add_(%d!, 1)\nsync.wait(%f)")
    assert ["wait", "add_", "neg", "add_"] not in made(outside + PAIR.format("a"))[1]


def test_what_another_stream_makes_is_copied_in_behind_the_event_that_orders_it() -> None:
    """Views that stand before the wait read nothing, and the copy need not come before them."""
    copied_in = (
        "%n = aten._to_copy(%d, device = @gpu0, non_blocking = true) : f32[8] in $n on main/side\n"
        "%e = sync.record() : u8[] @cpu in $e on main/side\n"
        "%k = aten._to_copy(%d, device = @gpu0, non_blocking = true) : f32[8] in $k on main/side\n"
    )
    view = "%v = aten.view(%n, size = [2, 4]) : f32[2, 4] in $n\nsync.wait(%e)\n"
    sums = "%s = aten.sum(%v) : f32[] in $s\naten.add_(%w!, %s)\n"
    after, graphs = made(copied_in + PAIR.format("a") + view + sums)
    assert graphs == [["neg", "add_", "view"], ["sum", "add_"]]
    names = [op.base for op in after.ops]
    assert names[-4:] == ["graph_launch", "wait", "copy_", "graph_launch"]
    # work outside of graphs that reads such a view needs the values before the first graph
    reader = "%h = aten._to_copy(%v, device = @cpu) : f32[2, 4] @cpu in $h\n"
    with pytest.raises(IrgraphError, match=r"no event orders aten\._to_copy on stream side"):
        rewrite(graph_of(copied_in + PAIR.format("a") + view + reader + sums), "cuda-graph")


def test_only_what_is_asked_for() -> None:
    before = graph_of(
        '%a = aten.neg(%x) : f32[8] in $a in module "0"\n'
        '%b = aten.exp(%a) : f32[8] in $b in module "0"\n'
        '%c = aten.neg(%b) : f32[8] in $c in module "1"\naten.add_(%w!, %c)'
    )
    after = run(load_script('capture module "0"'), before).graph
    assert launches(after) == [["neg", "exp"]]


@pytest.mark.parametrize(
    ("step", "graphs"), [(conv_step, 1), (eager_step, 1), (transformer_step, 2)]
)
def test_training_steps(step: Callable[..., Any], graphs: int) -> None:
    before = captured(step(4, "meta"), device="meta").graph
    after = rewrite(before, "cuda-graph").graph
    assert verify(after) == []
    assert len(launches(after)) == graphs
    result = compare(before, after, draws=1)
    assert result.same, str(result)
    times = [predict(graph, device="v100").step_time for graph in (before, after)]
    assert times[1] < times[0]


def test_gradients_summed_from_hooks_are_launched_at_once_too() -> None:
    before = parse(
        START.format(
            'c10d.allreduce_([%w!], process_group = "world", reduce_op = "avg", '
            "sparse_indices = none)\n" + PAIR.format("a")
        )
    )
    assert launches(rewrite(before, "cuda-graph").graph) == [["allreduce_", "neg", "add_"]]


RETURNED = """model "m" {{ format = 2 }}

device @gpu0 "v100"
input %x : f32[4] in $x

%a = aten.sin(%x) : f32[4] in $a
%v = aten.view(%a, [2, 2]) : f32[2, 2] in $a
%b = aten.cos(%v) : f32[2, 2] in $b
%c = aten.exp(%b) : f32[2, 2] in $c
return {}
"""


@pytest.mark.parametrize(
    ("returned", "graphs"),
    [("%a, %c", [["view", "cos", "exp"]]), ("%v, %c", [])],
)
def test_a_copied_input_is_not_returned(returned: str, graphs: list[list[str]]) -> None:
    before = parse(RETURNED.format(returned))
    requested = [op for op in before.walk() if op.base in ("view", "cos", "exp")]
    after = capture(before, requested).graph
    assert after.returned == before.returned
    assert verify(after) == []
    assert launches(after) == graphs
    result = compare(before, after)
    assert result.same, str(result)
