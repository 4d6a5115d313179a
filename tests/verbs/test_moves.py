"""``reorder`` and ``parallelize`` against oracles: launch order, and what streams guarantee."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irgraph.ir.effects import is_view
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.verify import verify
from irgraph.text import parse, print_graph
from irgraph.verbs import RefusedError, parallelize, reorder, streams
from tests.language.models import model
from tests.verbs.test_fuse_verb import conflict, graph_of

BRANCHES = """
input %x : f32[8] in $x
%a = aten.neg(%x) : f32[8] in $a
%b = aten.abs(%a) : f32[8] in $b
%c = aten.exp(%x) : f32[8] in $c
%d = aten.add(%b, %c) : f32[8] in $d
aten.relu_(%c!)
"""


def named(graph: Graph, *names: str) -> list[Op]:
    return [op for op in graph.walk() if op.name in {f"aten.{name}" for name in names}]


def order(graph: Graph) -> list[str]:
    return [op.name.removeprefix("aten.") for op in graph.ops]


def conflicts(leaves: list[Op]) -> list[tuple[int, int]]:
    pairs = [(a, b) for b in range(len(leaves)) for a in range(b)]
    return [(a, b) for a, b in pairs if conflict(leaves[a], leaves[b])]


NODES = """
input %x : f32[8] in $x
autograd.AddBackward() {
  %a = aten.neg(%x) : f32[8] in $a
  %b = aten.abs(%x) : f32[8] in $b
}
autograd.MulBackward() {
  %c = aten.exp(%x) : f32[8] in $c
  %d = aten.relu(%c) : f32[8] in $d
}
"""


def test_a_call_of_an_autograd_node_moves_alone_and_other_nodes_stay_whole() -> None:
    graph = model(NODES)
    (exp,), (neg,) = named(graph, "exp"), named(graph, "neg")
    after = reorder(graph, [exp], placement="before", anchor=neg).graph
    assert [op.name for op in after.walk()] == [
        "aten.exp",
        "autograd.AddBackward",
        "aten.neg",
        "aten.abs",
        "autograd.MulBackward",
        "aten.relu",
    ]
    assert verify(after) == []


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(["before", "after", "earliest", "latest"]))
def test_no_move_turns_a_dependence_round(seed: int, to: str) -> None:
    chance = random.Random(seed)
    graph = graph_of(seed)
    leaves = list(graph.leaves())
    members = chance.sample(leaves, min(len(leaves), chance.randrange(1, 4)))
    members.sort(key=leaves.index)
    others = [leaf for leaf in leaves if leaf not in members]
    anchor = chance.choice(others) if others and to in ("before", "after") else None
    if anchor is None and to in ("before", "after"):
        return
    try:
        done = reorder(graph, members, to, anchor)
    except RefusedError:
        assert anchor is not None
        return
    assert verify(done.graph) == []
    places = {leaf.identity: i for i, leaf in enumerate(done.graph.leaves())}
    assert set(places) == {leaf.identity for leaf in leaves}
    after = {leaf: places[leaf.identity] for leaf in leaves}
    for a, b in conflicts(leaves):
        assert after[leaves[a]] < after[leaves[b]]
    if anchor is not None:
        for member in members:
            before = after[member] < after[anchor]
            assert before == (to == "before") or not done.moved_ops


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 10**9))
def test_a_refused_move_would_cross_a_dependence(seed: int) -> None:
    chance = random.Random(seed)
    graph = graph_of(seed)
    leaves = [leaf for leaf in graph.leaves() if leaf in graph.ops]
    every = list(graph.leaves())
    if len(leaves) < 2:
        return
    anchor, member = sorted(chance.sample(leaves, 2), key=leaves.index)
    between = every[every.index(anchor) : every.index(member)]
    crossed = any(conflict(op, member) for op in between)
    try:
        reorder(graph, [member], "before", anchor)
    except RefusedError as error:
        assert crossed
        assert error.notes
    else:
        assert not crossed


def works(op: Op) -> bool:
    tensors = (*op.inputs, *op.outputs)
    return not is_view(op) and any(t.device != "cpu" for t in tensors)


def guaranteed(graph: Graph) -> set[tuple[int, int]]:
    """Return which device leaves come before which, by streams and events alone."""
    streams: dict[str, set[int]] = {}
    events: dict[str, set[int]] = {}
    pairs = set()
    for here, leaf in enumerate(graph.leaves()):
        done = streams.setdefault(leaf.stream, set())
        if leaf.name == "sync.record":
            events[leaf.outputs[0].name] = set(done)
        elif leaf.name == "sync.wait":
            done |= events[leaf.inputs[0].name]
        elif works(leaf):
            pairs |= {(before, here) for before in done}
            done.add(here)
    return pairs


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 10**9))
def test_events_guarantee_every_dependence_across_streams(seed: int) -> None:
    chance = random.Random(seed)
    graph = graph_of(seed)
    if any(leaf.stream for leaf in graph.leaves()):
        return  # what the program itself left to chance stays so
    members = chance.sample(list(graph.leaves()), 2)
    try:
        done = reorder(graph, members, "earliest", stream="side")
    except RefusedError:
        return
    assert verify(done.graph) == []
    leaves = list(done.graph.leaves())
    known = guaranteed(done.graph)
    for a, b in conflicts(leaves):
        syncs = any(leaves[i].name.startswith("sync.") for i in (a, b))
        if not syncs and works(leaves[a]) and works(leaves[b]):
            assert (a, b) in known
    assert parse(print_graph(done.graph)) == done.graph


def test_ops_move_before_and_after_others() -> None:
    graph = model(BRANCHES)
    (exp,) = named(graph, "exp")
    (neg,), (add,) = named(graph, "neg"), named(graph, "add")
    assert order(reorder(graph, [exp], "before", neg).graph)[:3] == ["exp", "neg", "abs"]
    assert order(reorder(graph, [exp], "earliest").graph)[0] == "exp"
    assert order(reorder(graph, named(graph, "neg", "abs"), "latest").graph)[0] == "exp"
    assert order(reorder(graph, [exp], "after", named(graph, "abs")[0]).graph) == order(graph)
    assert add in reorder(graph, [exp], "earliest").graph.ops


def test_ops_that_stand_right_already_stay() -> None:
    graph = model(BRANCHES)
    move = reorder(graph, named(graph, "neg"), "before", named(graph, "add")[0])
    assert (move.moved_ops, move.graph) == ((), graph)


def test_a_refused_move_shows_the_shortest_chain() -> None:
    graph = model(BRANCHES)
    with pytest.raises(RefusedError, match="this move would cross a dependence") as caught:
        reorder(graph, named(graph, "add"), "before", named(graph, "neg")[0])
    assert [told for _, told in caught.value.notes] == [
        "aten.abs reads %a ($a) of aten.neg: read after write",
        "aten.add reads %b ($b) of aten.abs: read after write",
    ]


def test_an_in_place_write_is_a_dependence_both_ways() -> None:
    graph = model(BRANCHES)
    with pytest.raises(RefusedError) as caught:
        reorder(graph, named(graph, "relu_"), "before", named(graph, "add")[0])
    assert caught.value.notes[-1][1] == "aten.relu_ writes %c ($c) of aten.add: write after read"


def test_what_moves_beside_itself_is_refused() -> None:
    graph = model(BRANCHES)
    with pytest.raises(RefusedError, match="the anchor is one of the ops that move"):
        reorder(graph, named(graph, "exp"), "before", named(graph, "exp")[0])


def test_an_assumption_passes_one_op() -> None:
    graph = model(BRANCHES.replace("%c =", "my.log(%x)\n%c ="))
    (exp,), neg = named(graph, "exp"), named(graph, "neg")[0]
    with pytest.raises(RefusedError):
        reorder(graph, [exp], "before", neg)
    done = reorder(graph, [exp], "before", neg, assuming="it writes nothing")
    assert done.assumed is not None
    assert done.assumed.name == "my.log"
    assert done.graph.ops[0].notes["assuming"] == "it writes nothing"


def test_two_independent_branches_run_side_by_side() -> None:
    graph = model(BRANCHES)
    done = parallelize(graph, [named(graph, "neg", "abs"), named(graph, "exp")], 2)
    assert [(op.name, op.stream) for op in done.ops if op.stream] == [
        ("aten.exp", "branch1"),
        ("sync.record", "branch1"),
    ]
    assert [stream.name for stream in done.streams] == ["branch1"]
    assert order(done) == ["neg", "abs", "exp", "sync.record", "sync.wait", "add", "relu_"]
    assert verify(done) == []


@pytest.mark.parametrize("names", [("neg", "add"), ("add", "neg")])
def test_groups_that_depend_on_each_other_are_refused_with_the_chain(
    names: tuple[str, ...],
) -> None:
    graph = model(BRANCHES)
    pair = "groups 1 and 2" if names[0] == "neg" else "groups 2 and 1"
    with pytest.raises(RefusedError, match=f"{pair} depend on each other") as caught:
        parallelize(graph, [named(graph, name) for name in names], 2)
    assert len(caught.value.notes) == 2


def test_nothing_moves_across_an_event_of_its_stream() -> None:
    graph = model(BRANCHES)
    done = parallelize(graph, [named(graph, "neg", "abs"), named(graph, "exp")], 2)
    (wait,) = (op for op in done.ops if op.name == "sync.wait")
    with pytest.raises(RefusedError) as caught:
        reorder(done, named(done, "add"), "before", wait)
    assert "order of events on a stream" in caught.value.notes[-1][1]


def test_an_ops_stream_is_that_of_its_last_work() -> None:
    x = Tensor("x", "f32", (4,), "x")
    calls = [Op("aten.neg", (x,), (x,), stream=name) for name in ("s1", "s2")]
    view = Op("aten.view", (x,), (x,), {"size": (4,)}, stream="s3")
    assert streams.stream_of(Op("autograd.X", body=(*calls, view), stream="s4")) == "s2"
    assert streams.stream_of(Op("autograd.X", body=(view,), stream="s4")) == "s4"
    assert streams.works(calls[0]) and not streams.works(view)
    host = Tensor("h", "f32", (4,), "h", device="cpu")
    assert not streams.works(Op("aten.neg", (host,), (host,)))
    assert streams.works(Op("aten.to", (host,), (x,)))
    assert not streams.works(Op("sync.record", (), (x,)))


THREADS = """model "threads" { format = 2 }

device @gpu0 "v100"
input %x : f32[8] in $x

%a = aten.exp(%x) : f32[8] in $a
%b = aten.neg(%a) : f32[8] in $b
autograd.NegBackward0(%b) on backward phase backward {
  %c = aten.abs(%b) : f32[8] in $c
}
%d = aten.sin(%a) : f32[8] in $d on backward phase backward
return %c, %d
"""


@pytest.mark.parametrize(("placement", "thread"), [("earliest", "main"), ("latest", "backward")])
def test_a_moved_op_is_launched_by_the_thread_of_its_neighbour(placement: str, thread: str) -> None:
    graph = parse(THREADS)
    after = reorder(graph, named(graph, "sin"), placement).graph
    assert [op.thread for op in named(after, "sin")] == [thread]


NESTED = """model "nested" { format = 2 }

device @gpu0 "v100"
input %m : f32[8, 8] in $m

%a = aten.exp(%m) : f32[8, 8] in $a
%b = aten.neg(%a) : f32[8, 8] in $b
%d = aten.matmul(%a, %a) : f32[8, 8] in $d on backward phase backward {
  %d = aten.mm(%a, %a) : f32[8, 8] in $d on backward phase backward
}
return %b, %d
"""


def test_calls_below_a_moved_op_are_launched_by_its_thread() -> None:
    graph = parse(NESTED)
    assert {op.thread for op in named(graph, "matmul")[0].walk()} == {"backward"}
    after = reorder(graph, named(graph, "matmul"), "earliest").graph
    (call,) = named(after, "matmul")
    assert [op.thread for op in call.walk()] == ["main", "main"]
