"""Algorithm 1: its lines, the rules of its code, and the published golden vector."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from msgspec.structs import replace

from irgraph.diagnostics import IrgraphError
from irgraph.ir.cost import Kernel, Overheads, Priced
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.overheads import load_host
from irgraph.overheads.names import current_names
from irgraph.schedule.accounting import (
    ACCOUNTINGS,
    BLOCKING,
    CODE_2021,
    CODE_2022,
    CODE_HEAD,
    PAPER,
    Accounting,
    find_accounting,
)
from irgraph.schedule.algorithm1 import algorithm1
from irgraph.schedule.timeline import Timeline
from tests.schedule.graphs import FLAT, FlatHost, kernel, priced


def spans(timeline: Timeline, cause: str) -> list[tuple[float, float]]:
    return [(i.start, i.end) for i in timeline.intervals if i.cause == cause]


def test_paper_starts_a_kernel_at_half_of_t4_on_an_idle_device() -> None:
    timeline = algorithm1(
        priced((Op("aten.linear"), [kernel(100.0)])), FlatHost(), accounting=PAPER
    )
    # T1 1, T2 2, then half of the paper's 10 us
    assert spans(timeline, "kernel") == [(8.0, 108.0)]
    assert timeline.host_time == 1 + 2 + 10 + 3
    assert timeline.step_time == 108.0


def test_paper_starts_a_kernel_one_microsecond_behind_a_busy_device() -> None:
    two = priced((Op("aten.linear"), [kernel(100.0), kernel(50.0)]))
    timeline = algorithm1(two, FlatHost(), accounting=PAPER)
    assert spans(timeline, "kernel") == [(8.0, 108.0), (109.0, 159.0)]
    assert timeline.host_time == 1 + 2 + 10 + 5 + 10 + 3
    assert timeline.active_time == 150.0
    assert timeline.idle_time == 9.0


def test_an_op_without_launches_pays_t1_and_t5_only() -> None:
    timeline = algorithm1(priced((Op("aten.view"), [])), FlatHost(), accounting=PAPER)
    assert [(i.cause, i.length) for i in timeline.intervals] == [("T1", 1.0), ("T5", 5.0)]


def test_code_2021_starts_a_kernel_at_half_of_the_tables_t4() -> None:
    timeline = algorithm1(
        priced((Op("aten.linear"), [kernel(100.0)])), FlatHost(), accounting=CODE_2021
    )
    assert spans(timeline, "kernel") == [(1 + 2 + 4 / 2, 105.0)]


def test_code_2022_starts_behind_t4_and_lengthens_every_kernel() -> None:
    timeline = algorithm1(
        priced((Op("aten.linear"), [kernel(100.0)])), FlatHost(), accounting=CODE_2022
    )
    assert spans(timeline, "kernel") == [(7.0, 111.0)]


def test_code_head_waits_behind_every_copy_of_a_tensor() -> None:
    step = priced((Op("aten.to"), [kernel(100.0)]), (Op("aten.view"), []))
    timeline = algorithm1(step, FlatHost(), accounting=CODE_HEAD)
    # the copy runs from 1 + 2 + 4 for 105 us; the view's T1 and T5 follow
    assert timeline.host_time == 112.0 + 1.0 + 5.0
    assert algorithm1(step, FlatHost(), accounting=CODE_2022).host_time == 16.0


def test_launches_a_table_lists_cost_the_host_where_the_rules_say_so() -> None:
    listed = replace(FLAT, listed=("kernel", "kernel", "memcpy"))
    host = FlatHost(by_name={"aten.index": listed, "aten.view": listed})
    known = priced((Op("aten.index"), [kernel(1.0)]))
    unlaunched = priced((Op("aten.view"), []))
    rules = {when: Accounting(when, listed=when) for when in ("never", "unknown", "always")}

    def host_time(step: Priced, when: str) -> float:
        return algorithm1(step, host, accounting=rules[when]).host_time

    one, three = 1 + 2 + 4 + 3, 1 + 2 + (4 + 5 + 4 + 5 + 6) + 3
    assert [host_time(known, when) for when in rules] == [one, one, three]
    assert [host_time(unlaunched, when) for when in rules] == [6, 6, three]
    unknown = replace(unlaunched, unknown=unlaunched.graph.ops)
    assert host_time(unknown, "unknown") == three


def test_a_kind_of_launch_without_t4_takes_no_host_time_of_its_own() -> None:
    kernels = [kernel(1.0, "fill", launch="memset"), kernel(10.0)]
    timeline = algorithm1(
        priced((Op("aten.linear"), kernels)), FlatHost(), accounting=Accounting("plain")
    )
    assert timeline.host_time == 1 + 2 + 4 + 3
    assert spans(timeline, "kernel") == [(3.0, 4.0), (7.0, 17.0)]


def test_blocking_copies_make_the_host_wait_until_they_have_ended() -> None:
    copy = kernel(100.0, "copy", launch="memcpy", blocking=True)
    step = priced((Op("aten.linear"), [kernel(50.0)]), (Op("aten.to"), [copy]))
    rules = Accounting("waits", sync="blocking", sync_return=2.0)
    timeline = algorithm1(step, FlatHost(), accounting=rules)
    # the kernel runs 7 to 57, the copy is launched by 19 and runs 58 to 158
    assert spans(timeline, "sync") == [(158.0, 160.0)]
    assert timeline.waiting_time == 158.0 - 19.0
    assert timeline.step_time == 160.0 + 3.0


def test_latency_holds_a_kernel_back_only_on_an_idle_device() -> None:
    step = priced((Op("aten.linear"), [kernel(20.0), kernel(1.0)]))
    timeline = algorithm1(step, FlatHost(), accounting=Accounting("late", latency=3.0))
    assert spans(timeline, "kernel") == [(10.0, 30.0), (31.0, 32.0)]


def labelled(name: str) -> tuple[Priced, Op]:
    inner = [Op("aten.add_"), Op("aten.add_")]
    label = Op(name, body=tuple(inner))
    kernels = {op: (kernel(1.0),) for op in inner}
    return Priced(Graph("test", ops=(label,)), "test", kernels), label


def test_a_label_is_free_entered_or_one_whole_operation() -> None:
    step, _ = labelled("Optimizer.step#SGD.step")
    host = FlatHost(by_name={"Optimizer.step#SGD.step": Overheads(1, 50, 30, {"kernel": 4.0}, 7)})

    def host_time(way: str) -> float:
        rules = Accounting(way, annotations=way)
        return algorithm1(step, host, accounting=rules).host_time

    inside = 2 * (1 + 2 + 4 + 3)
    assert host_time("free") == inside
    assert host_time("entered") == inside + (50 - 2) + (30 - 3)
    assert host_time("whole") == 1 + 2 * 50 + 2 * 30 + 7


def test_a_label_that_the_table_does_not_know_costs_nothing() -> None:
    step, _ = labelled("my label")
    unknown = replace(FLAT, level="global")
    host = FlatHost(by_name={"my label": unknown})
    for way in ("entered", "whole"):
        rules = Accounting(way, annotations=way)
        assert algorithm1(step, host, accounting=rules).host_time == 20.0


def test_levels_count_how_overheads_were_found() -> None:
    host = FlatHost(by_name={"aten.view": replace(FLAT, level="category")})
    step = priced((Op("aten.view"), []), (Op("aten.linear"), [kernel(1.0)]), (Op("aten.t"), []))
    assert algorithm1(step, host, accounting=BLOCKING).levels == {"category": 1, "op": 2}


def test_the_timeline_names_what_it_was_computed_from() -> None:
    leaf = Op("aten.strange")
    step = replace(priced((leaf, [])), unknown=(leaf,))
    timeline = algorithm1(step, FlatHost(), accounting=PAPER)
    assert (timeline.device, timeline.host, timeline.accounting) == ("test", "flat", "paper")
    assert timeline.unknown == (leaf,)


def test_presets_are_found_by_name() -> None:
    assert find_accounting("paper") is PAPER
    assert set(ACCOUNTINGS) == {"paper", "code-2021", "code-2022", "code-head", "blocking"}


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(IrgraphError, match="unknown accounting 'papper'; did you mean 'pap"):
        find_accounting("papper")


@pytest.mark.data
def test_the_published_golden_vector_is_reproduced(data_dir: Path) -> None:
    """CPU time after each of the 115 operations of a DLRM_default step, 2021-05-04."""
    with (data_dir / "paper/algorithm1_cpu_time_golden_2021-05-04.csv").open() as file:
        rows = list(csv.DictReader(file))
    host = load_host("v100-2021-05-04")
    ops = [Op(current_names(row["op"])[0]) for row in rows]
    kernels = {
        op: tuple(Kernel("any", "any", 0.0, launch=k) for k in host.overheads(op, 1).listed)
        for op, row in zip(ops, rows, strict=True)
        if row["treatment"] == "kernels"
    }
    step = Priced(Graph("golden", ops=tuple(ops)), "v100", kernels)
    timeline = algorithm1(step, host, accounting=CODE_2021)
    ends = {i.op: i.end for i in timeline.intervals if timeline.on_host(i)}
    expected = [float(row["cumulative_cpu_time_us"]) for row in rows]
    assert len(expected) == 115
    assert [ends[op] for op in ops] == pytest.approx(expected, rel=1e-9)


def test_a_label_that_costs_less_than_what_it_encloses_costs_nothing() -> None:
    step = priced((Op("a label", body=(inner := Op("aten.linear"),)), []))
    step = replace(step, kernels={inner: (kernel(1.0),)})
    little = FlatHost(by_name={"a label": Overheads(0.0, 0.5, 0.5, {}, 0.0, "op")})
    rules = Accounting("entered", annotations="entered")
    assert algorithm1(step, little, accounting=rules).host_time == 1 + 2 + 4 + 3


def test_a_host_is_asked_for_the_launches_that_are_paid() -> None:
    """As many as an op has kernels; one for a graph, and for a label as for its first launch."""
    asked: list[tuple[str, int]] = []

    class Listening(FlatHost):
        def overheads(self, op: Op, launches: int) -> Overheads:
            asked.append((op.name, launches))
            return replace(FLAT, level="op")

    inner = Op("aten.linear")
    label = Op("a label", body=(inner,))
    captured = Op("cuda.graph_launch", body=(Op("a.a"), Op("a.b")))
    kernels = {inner: (kernel(1.0),) * 3}
    kernels |= {op: (kernel(1.0),) for op in captured.body}
    step = Priced(Graph("g", ops=(label, captured, Op("aten.view"))), "t", kernels)
    algorithm1(step, Listening(), accounting=Accounting("entered", annotations="entered"))
    assert set(asked) == {
        ("a label", 1),
        ("aten.linear", 3),
        ("cuda.graph_launch", 1),
        ("aten.view", 0),
    }
