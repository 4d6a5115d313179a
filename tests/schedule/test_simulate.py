"""The simulator: equal to Algorithm 1 where that is enough; threads, streams, events, waits."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.devices.library import load_device
from costmodels.pricing.price import price
from irgraph.diagnostics import IrgraphError
from irgraph.ir.cost import Kernel, Overheads, Priced
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.verify import verify
from irgraph.schedule.accounting import ACCOUNTINGS, Accounting
from irgraph.schedule.algorithm1 import algorithm1
from irgraph.schedule.critical_path import critical_path
from irgraph.schedule.simulate import simulate
from irgraph.schedule.timeline import Timeline
from irgraph.text import parse, print_graph
from tests.schedule.graphs import FlatHost, kernel, priced, steps

PLAIN = Accounting("plain", gap=0.0, sync="blocking")
EVENT = Tensor("e", "u8", (), "be", device="cpu")


def spans(timeline: Timeline, cause: str, name: str = "") -> list[tuple[float, float]]:
    return [
        (i.start, i.end)
        for i in timeline.intervals
        if i.cause == cause and name in str(timeline.resources[i.resource])
    ]


def run(*calls: tuple[Op, list[Kernel]], rules: Accounting = PLAIN) -> Timeline:
    return simulate(priced(*calls), FlatHost(), accounting=rules)


@given(steps(), st.sampled_from(list(ACCOUNTINGS.values())))
def test_on_one_thread_and_one_stream_it_is_algorithm_1_exactly(
    drawn: tuple[Priced, FlatHost], rules: Accounting
) -> None:
    expected = algorithm1(drawn[0], drawn[1], accounting=rules)
    found = simulate(drawn[0], drawn[1], accounting=rules)
    assert list(found.intervals) == list(expected.intervals)
    assert found.resources == expected.resources
    assert found.step_time == expected.step_time
    assert found.active_time == pytest.approx(expected.active_time)
    assert found.waiting_time == expected.waiting_time
    assert found.levels == expected.levels


def test_a_cpu_runs_its_kernels_on_the_thread_that_calls_them() -> None:
    calls = [kernel(10.0, launch="call"), kernel(20.0, launch="call")]
    timeline = run((Op("aten.mm"), calls), rules=ACCOUNTINGS["blocking"])
    assert spans(timeline, "kernel", "host main") == [(3.0, 13.0), (13.0, 33.0)]
    assert timeline.step_time == 36.0  # T1 and T2 before, T3 behind
    assert timeline.active_time == 30.0
    assert not spans(timeline, "latency") and not spans(timeline, "gap")


@given(steps(), st.data())
def test_causes_add_up_to_the_step_time_on_any_threads_and_streams(
    drawn: tuple[Priced, FlatHost], data: st.DataObject
) -> None:
    threads = st.sampled_from(["main", "backward", "loader"])
    streams = st.sampled_from(["", "s1", "s2"])
    kernels: dict[int, tuple[Kernel, ...]] = {}
    ops = []
    for op in drawn[0].graph.top_level():
        ops.append(replace(op, thread=data.draw(threads), stream=data.draw(streams)))
        kernels[ops[-1]] = drawn[0].of(op)
    step = Priced(Graph("drawn", ops=tuple(ops)), "test", kernels)
    timeline = simulate(step, drawn[1])
    path = critical_path(timeline)
    assert path.length == pytest.approx(timeline.step_time, rel=1e-9, abs=1e-6)
    assert sum(path.by_cause().values()) == pytest.approx(timeline.step_time, rel=1e-9, abs=1e-6)
    for resource in range(len(timeline.resources)):
        own = [i for i in timeline.intervals if i.resource == resource and i.cause != "latency"]
        assert all(a.end <= b.start + 1e-6 for a, b in pairwise(own))


def test_the_backward_thread_runs_while_the_main_one_stands_still() -> None:
    ops = [Op("aten.sum"), Op("autograd.SumBackward0", thread="backward"), Op("aten.add_")]
    timeline = run(*((op, []) for op in ops))
    assert spans(timeline, "T5", "main") == [(1.0, 6.0), (13.0, 18.0)]
    assert spans(timeline, "T5", "backward") == [(7.0, 12.0)]


def test_other_threads_start_where_they_are_started_and_run_on_their_own() -> None:
    ops = [Op("aten.a"), Op("aten.b", thread="loader"), Op("aten.c"), Op("aten.d", thread="loader")]
    timeline = run(*((op, []) for op in ops))
    assert spans(timeline, "T5", "main") == [(1.0, 6.0), (7.0, 12.0)]
    assert spans(timeline, "T5", "loader") == [(7.0, 12.0), (13.0, 18.0)]


def test_streams_run_beside_each_other_where_they_need_different_things() -> None:
    there = Op("aten.to", (EVENT,), (Tensor("x", "f32", (4,), "bx"),), stream="copy")
    timeline = run((there, [kernel(100.0, "copy", launch="memcpy")]), (Op("a.b"), [kernel(100.0)]))
    assert spans(timeline, "kernel", "copy") == [(9.0, 109.0)]
    assert spans(timeline, "kernel", "default") == [(19.0, 119.0)]


def test_kernels_on_two_streams_share_the_device() -> None:
    timeline = run((Op("a.a", stream="s"), [kernel(100.0)]), (Op("a.b"), [kernel(100.0)]))
    # alone from 7 to 17, then half as fast: 90 us of work left take 180
    assert spans(timeline, "kernel") == [(7.0, 197.0), (17.0, 207.0)]
    assert timeline.active_time == 200.0


def test_a_stream_waits_for_an_event_of_another() -> None:
    record = Op("sync.record", results=(EVENT,), stream="s")
    wait = Op("sync.wait", (EVENT,))
    timeline = run(
        (Op("a.a", stream="s"), [kernel(100.0)]),
        (record, []),
        (wait, []),
        (Op("a.b"), [kernel(10.0)]),
    )
    assert spans(timeline, "kernel") == [(7.0, 107.0), (107.0, 117.0)]
    assert timeline.host_time == 10 + 6 + 6 + 10


def test_an_event_that_nothing_records_is_refused() -> None:
    with pytest.raises(IrgraphError, match=r"sync.wait waits for %e, which no sync.record made"):
        run((Op("sync.wait", (EVENT,)), []))


@pytest.mark.parametrize("name", ["sync.event", "sync.stream", "sync.device"])
def test_the_host_waits_for_an_event_a_stream_or_the_device(name: str) -> None:
    operands = (EVENT,) if name == "sync.event" else ()
    timeline = run(
        (Op("a.a"), [kernel(100.0)]),
        (Op("sync.record", results=(EVENT,)), []),
        (Op(name, operands), []),
    )
    assert timeline.step_time == 107.0
    assert timeline.waiting_time == 107.0 - (10 + 6 + 6)


def test_the_device_is_waited_for_on_all_its_streams() -> None:
    calls = [(Op("a.a", stream="s"), [kernel(100.0)])]
    assert run(*calls, (Op("sync.stream"), [])).host_time == 16.0
    assert run(*calls, (Op("sync.device"), [])).host_time == 107.0


def test_a_size_that_depends_on_values_makes_the_host_wait() -> None:
    op = Op("aten.nonzero", (Tensor("x", "f32", (4,), "bx"),))
    assert run((op, [kernel(100.0)])).host_time == 107.0 + 3.0


def test_a_full_queue_holds_the_host_back() -> None:
    many = [(Op("a.a"), [kernel(100.0)]) for _ in range(4)]
    assert run(*many).host_time == 40.0
    short = replace(PLAIN, queue_depth=2)
    # the third launch waits for the first kernel, the fourth for the second: 207 + 4 + 3
    assert run(*many, rules=short).host_time == 214.0


def test_one_launch_starts_all_kernels_of_a_graph() -> None:
    inner = [Op("a.a"), Op("a.b", stream="s"), Op("a.c")]
    graph = Op("cuda.graph_launch", body=tuple(inner), attributes={"id": 1})
    after = Op("a.d")
    kernels = {op: (kernel(10.0, "collective" if op.stream else "gemm"),) for op in inner}
    step = Priced(Graph("g", ops=(graph, after)), "t", {**kernels, after: (kernel(1.0),)})
    timeline = simulate(step, FlatHost(), accounting=PLAIN)
    assert [end - start for start, end in spans(timeline, "T4")] == [4.0, 4.0]
    assert spans(timeline, "kernel", "default") == [(7.0, 17.0), (17.0, 27.0), (27.0, 28.0)]
    assert spans(timeline, "kernel", "gpu0 s") == [(7.0, 17.0)]
    # among a graph's kernels there is a gap of its own, after it that of all
    spaced = simulate(step, FlatHost(), accounting=replace(PLAIN, gap=3.0, graph_gap=0.5))
    assert spans(spaced, "kernel", "default") == [(7.0, 17.0), (17.5, 27.5), (30.5, 31.5)]


MODEL = """model "m" { format = 1  dims = {B = 4096} }

device @gpu0 "v100"
stream side @gpu0
input %x : f32[B, 1024] in $b1

%a = aten.relu(%x) : f32[B, 1024] in $b2 on main/side
%e = sync.record() : u8[] @cpu in $e on main/side
sync.wait(%e)
%b = aten.relu(%a) : f32[B, 1024] in $b3
sync.stream()
"""


def test_events_and_waits_have_a_text_form() -> None:
    graph = parse(MODEL)
    assert verify(graph) == []
    assert print_graph(graph) == MODEL
    step = price(graph, load_device("v100"))
    assert step.unknown == ()
    timeline = simulate(step, FlatHost(), accounting=PLAIN)
    (_, first), (second, last) = spans(timeline, "kernel")
    assert second >= first
    assert timeline.step_time == last


def test_a_copy_inside_an_op_goes_where_the_copy_says() -> None:
    """Its stream and the engine it needs are those of the call that launches it."""
    host, near = Tensor("h", "f32", (4,), "bh", device="cpu"), Tensor("d", "f32", (4,), "bd")
    far = Tensor("e", "f32", (4,), "be")

    def beside(copy: Op, launch: str = "memcpy") -> list[tuple[float, float]]:
        scope = Op("autograd.X", body=(copy,))
        work = Op("a.b")
        kernels = {copy: (kernel(100.0, "copy", launch=launch),), work: (kernel(100.0),)}
        step = Priced(Graph("g", ops=(scope, work)), "t", kernels)
        timeline = simulate(step, FlatHost(), accounting=PLAIN)
        (copied,) = spans(timeline, "kernel", " s")
        return [copied, *spans(timeline, "kernel", "default")]

    def move(source: Tensor, target: Tensor) -> Op:
        return Op("aten.to", (source,), (target,), stream="s")

    alone = [(9.0, 109.0), (19.0, 119.0)]
    assert beside(move(host, near)) == beside(move(near, host)) == alone
    sharing = beside(move(near, far))
    assert sharing != alone
    # a kernel that reads memory of the host is a kernel
    assert [end - start for start, end in beside(move(host, near), "kernel")] != [100.0, 100.0]


def test_copies_of_both_directions_do_not_share_and_those_of_one_do() -> None:
    host, near = Tensor("h", "f32", (4,), "bh", device="cpu"), Tensor("d", "f32", (4,), "bd")

    def lengths(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> list[float]:
        ops = [Op("aten.to", (a,), (b,), stream=s) for (a, b), s in ((first, "s"), (second, ""))]
        copies = [kernel(100.0, "copy", launch="memcpy") for _ in ops]
        timeline = run(*((op, [copy]) for op, copy in zip(ops, copies, strict=True)))
        return [end - start for start, end in spans(timeline, "kernel")]

    to_device, to_host = (host, near), (near, host)
    assert lengths(to_device, to_host) == [100.0, 100.0]
    assert lengths(to_device, to_device) != [100.0, 100.0]
    assert lengths(to_host, to_host) != [100.0, 100.0]


def test_what_follows_a_graph_waits_for_all_its_streams() -> None:
    inner = [Op("a.a"), Op("a.b", stream="s")]
    graph, after = Op("cuda.graph_launch", body=tuple(inner)), Op("a.d")
    kernels = {inner[0]: (kernel(10.0),), inner[1]: (kernel(100.0, "collective"),)}
    step = Priced(Graph("g", ops=(graph, after)), "t", {**kernels, after: (kernel(1.0),)})
    timeline = simulate(step, FlatHost(), accounting=PLAIN)
    assert spans(timeline, "kernel") == [(7.0, 17.0), (7.0, 107.0), (107.0, 108.0)]


def test_a_thread_starts_behind_the_very_first_thing_that_the_program_did() -> None:
    host = FlatHost(Overheads(0.0, 2.0, 3.0, {}, 5.0))
    step = priced((Op("aten.view"), []), (Op("aten.view", thread="loader"), []))
    timeline = simulate(step, host, accounting=PLAIN)
    assert [(i.start, i.end) for i in timeline.intervals] == [(0.0, 5.0), (5.0, 10.0)]
