"""The critical path explains the whole step; slack and sensitivity agree with simulation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from irgraph.ir.cost import Priced
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.schedule.accounting import ACCOUNTINGS, BLOCKING, PAPER, Accounting
from irgraph.schedule.algorithm1 import algorithm1
from irgraph.schedule.critical_path import critical_path
from irgraph.schedule.tasks import total_float
from irgraph.schedule.timeline import Recorder, Timeline
from tests.schedule.graphs import FLAT, FlatHost, kernel, priced, steps


def slacks(timeline: Timeline) -> list[float]:
    """Return by how much later each interval could end."""
    columns = timeline.columns
    found: list[float] = total_float(
        columns.tasks, columns.end, columns.end - columns.start
    ).tolist()
    return found


@given(steps(), st.sampled_from(list(ACCOUNTINGS.values())))
def test_causes_add_up_to_the_step_time(drawn: tuple[Priced, FlatHost], rules: Accounting) -> None:
    timeline = algorithm1(drawn[0], drawn[1], accounting=rules)
    path = critical_path(timeline)
    step = timeline.step_time
    assert path.length == pytest.approx(step, rel=1e-12, abs=1e-9)
    assert sum(path.by_cause().values()) == pytest.approx(step, rel=1e-12, abs=1e-9)
    assert sum(path.by_op().values()) == pytest.approx(step, rel=1e-12, abs=1e-9)
    ends = [0.0, *(i.end for i in path.intervals)]
    assert [i.start for i in path.intervals] == ends[:-1]


@given(steps(), st.sampled_from(list(ACCOUNTINGS.values())))
def test_slack_is_never_negative_and_zero_on_the_path(
    drawn: tuple[Priced, FlatHost], rules: Accounting
) -> None:
    path = critical_path(algorithm1(drawn[0], drawn[1], accounting=rules))
    assert min(path.slack.values(), default=0.0) >= 0.0
    assert {path.slack[i.op] for i in path.intervals if i.op is not None} <= {0.0}


@given(steps(), st.data())
def test_an_interval_may_end_later_by_its_slack_and_no_more(
    drawn: tuple[Priced, FlatHost], data: st.DataObject
) -> None:
    timeline = algorithm1(drawn[0], drawn[1], accounting=BLOCKING)
    if not timeline.intervals:
        return
    at = data.draw(st.integers(0, len(timeline.intervals) - 1))
    slack = slacks(timeline)[at]
    step = timeline.step_time
    assert _later(timeline, at, slack) == pytest.approx(step, rel=1e-9, abs=1e-6)
    assert _later(timeline, at, slack + 1.0) == pytest.approx(step + 1.0, rel=1e-9, abs=1e-6)


def _later(timeline: Timeline, at: int, by: float) -> float:
    """Replay a timeline with one interval longer and return the end of the step."""
    ends: list[float] = []
    for position, interval in enumerate(timeline.intervals):
        start = max((ends[p] for p in interval.after), default=0.0)
        ends.append(start + interval.length + (by if position == at else 0.0))
    return max(ends)


def test_a_device_bound_step_is_explained_by_its_kernels() -> None:
    ops = [Op("aten.linear"), Op("aten.linear")]
    step = priced((ops[0], [kernel(100.0)]), (ops[1], [kernel(200.0, "copy")]))
    path = critical_path(algorithm1(step, FlatHost(), accounting=PAPER))
    causes = {"kernel copy": 200.0, "kernel gemm": 100.0, "T4": 5.0, "T2": 2.0, "T1": 1.0, "gap": 1}
    assert path.by_cause() == causes
    assert path.by_op() == {"aten.linear": 309.0}


def test_slack_of_a_short_kernel_is_the_time_the_host_needs_beside_it() -> None:
    short, last = Op("aten.relu"), Op("aten.view")
    step = priced((short, [kernel(1.0)]), (last, []))
    timeline = algorithm1(step, FlatHost(), accounting=Accounting("plain"))
    spare = dict(zip(timeline.intervals, slacks(timeline), strict=True))
    own = {i.cause: s for i, s in spare.items() if i.cause == "kernel"}
    # the kernel runs 7 to 8; the host is done with the view at 10 + 1 + 5
    assert own == {"kernel": 8.0}
    assert critical_path(timeline).slack == {short: 0.0, last: 0.0}


def test_two_streams_joined_by_a_wait_are_explained_by_the_longer() -> None:
    record = Recorder()
    left, right = (record.resource("gpu0", name) for name in ("default", "copy"))
    first = record.add(left, "kernel", 30.0, Op("a.a"), kernel(30.0, "gemm"))
    other = record.add(right, "kernel", 50.0, Op("b.b"), kernel(50.0, "copy"))
    record.add(left, "kernel", 10.0, Op("c.c"), kernel(10.0, "gemm"), waits=(other,))
    timeline = Timeline(record.intervals(), tuple(record.resources))
    assert timeline.active_time == 60.0
    assert critical_path(timeline).by_cause() == {"kernel copy": 50.0, "kernel gemm": 10.0}
    assert slacks(timeline)[first] == 20.0


def test_modules_share_the_path_by_what_they_call() -> None:
    inside, outside = Op("aten.linear", module="bot.0"), Op("aten.sum")
    step = priced((inside, [kernel(100.0)]), (outside, [kernel(200.0)]))
    found = critical_path(algorithm1(step, FlatHost(), accounting=PAPER)).by_module()
    assert found == {"(none)": 201.0, "bot.0": 108.0}


def test_an_empty_timeline_has_an_empty_path() -> None:
    path = critical_path(Timeline((), ()))
    assert (path.intervals, path.length, path.step_time) == ((), 0.0, 0.0)


def test_ops_below_a_label_have_slack_of_their_own() -> None:
    inner = Op("aten.add_")
    label = Op("a label", body=(inner,))
    step = Priced(Graph("g", ops=(label,)), "test", {inner: (kernel(1.0),)})
    host = FlatHost(by_name={"a label": replace(FLAT, level="global")})
    path = critical_path(algorithm1(step, host, accounting=BLOCKING))
    assert set(path.slack) == {inner}
