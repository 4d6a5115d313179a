"""What runs on different streams and depends on each other must stay in order."""

from __future__ import annotations

import sys

import pytest

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.language import load_script, run
from irgraph.text import IrgraphError
from irgraph.verbs import RefusedError
from irgraph.verbs.stream_order import StreamOrder
from tests.language.models import model

TWO = """stream s @gpu0
input %x : f32[8] in $x
%a = aten.neg(%x) : f32[8] in $a on main/s
%e = sync.record() : u8[] @cpu in $e on main/s
{held}
%b = aten.abs(%a) : f32[8] in $b
"""
ORDERS = {
    "wait": "sync.wait(%e)",
    "event": "sync.event(%e)",
    "device": "sync.device()",
    "stream": "sync.stream() on main/s",
    "copy to the host": "%c = aten.to(%a, device = @cpu) : f32[8] @cpu in $c on main/s",
}


def two(held: str) -> Graph:
    """Return a graph of two streams that something may order."""
    return model(TWO.replace("{held}", held))


def waits(graph: Graph) -> list[Op]:
    """Return the waits of a graph."""
    return [op for op in graph.walk() if op.name == "sync.wait"]


@pytest.mark.parametrize("what", sorted(ORDERS))
def test_what_orders_streams(what: str) -> None:
    assert not StreamOrder(two(ORDERS[what])).unordered


@pytest.mark.parametrize("held", ["", "sync.wait(%e) on main/s"])
def test_what_orders_nothing(held: str) -> None:
    (tie,) = StreamOrder(two(held)).unordered
    assert (tie.kind, tie.tensor.name if tie.tensor else "") == ("raw", "a")


def test_of_two_waits_one_may_go() -> None:
    graph = two("sync.wait(%e)\nsync.wait(%e)")
    first, second = waits(graph)
    StreamOrder(graph).check({first})
    with pytest.raises(RefusedError, match="no event orders"):
        StreamOrder(graph).check({first, second})


def test_all_that_are_not_needed_go_and_the_last_stays() -> None:
    graph = two("sync.wait(%e)\nsync.wait(%e)")
    outcome = run(load_script("remove many sync.wait(...)"), graph)
    assert len(waits(outcome.graph)) == 1
    assert "no event orders" in str(outcome.report)


def test_an_assumption_lets_a_wait_go() -> None:
    graph = two("sync.wait(%e)")
    outcome = run(load_script('remove sync.wait(...) assuming "a is never written"'), graph)
    assert not waits(outcome.graph)
    assert outcome.report.assumptions == ("sync.wait (%e): a is never written",)


def test_no_result_of_a_script_loses_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["irgraph.verbs.streams"], "_joins", lambda *_: iter(()))
    graph = model(
        "input %x : f32[8] in $x\n%a = aten.neg(%x) : f32[8] in $a\n"
        "%b = aten.abs(%a) : f32[8] in $b\n"
    )
    with pytest.raises(IrgraphError, match="no event orders"):
        run(load_script("reorder aten.abs latest on stream side"), graph)


FREE = (
    TWO.replace("{held}", "")
    + "%c = aten.neg(%x) : f32[8] in $c\n%d = aten.abs(%c) : f32[8] in $d\n"
)
"""Nothing orders the first two ops; the last two are on one stream."""


def test_one_order_that_was_never_there_hides_no_other_that_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = model(FREE)
    assert len(StreamOrder(graph).unordered) == 1
    monkeypatch.setattr(sys.modules["irgraph.verbs.streams"], "_joins", lambda *_: iter(()))
    with pytest.raises(IrgraphError, match=r"no event orders aten\.neg on stream default"):
        run(load_script("find all = many aten.abs\nreorder all latest on stream side"), graph)


@pytest.mark.parametrize(
    "script",
    [
        "cast many aten.abs to bf16",
        "replace many %y = aten.abs(%v) with { %t = aten.neg(%v)  %y = aten.relu(%t) }",
        "resize B = 8",
        "remove many %y = aten.neg(%v) using %v for %y",
    ],
)
def test_an_order_that_was_never_there_is_not_asked_for(script: str) -> None:
    outcome = run(load_script(script), model(FREE))
    assert outcome.graph != model(FREE)
