"""Sensitivity agrees with simulating the step again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from irgraph.ir.cost import Host, Overheads, Priced
from irgraph.ir.op import Op
from irgraph.schedule import sensitivity as sensitivity_module
from irgraph.schedule.accounting import BLOCKING, PAPER
from irgraph.schedule.algorithm1 import algorithm1
from irgraph.schedule.intervals import Intervals
from irgraph.schedule.op_savings import op_savings
from irgraph.schedule.sensitivity import sensitivity
from irgraph.schedule.simulate import simulate
from irgraph.schedule.tasks import Tasks, run
from irgraph.schedule.timeline import Timeline
from tests.schedule.graphs import FlatHost, kernel, priced, steps
from tests.schedule.test_tasks import drawn_tasks


def test_sensitivity_is_the_step_with_one_operation_faster() -> None:
    large, small = Op("aten.linear", module="bot.0", origin="et#4"), Op("aten.relu")
    step = priced((large, [kernel(400.0)]), (small, [kernel(100.0)]))
    timeline = algorithm1(step, FlatHost(), accounting=PAPER)
    (most, next_most), _ = sensitivity(timeline)
    assert (most.name, next_most.name) == ("aten.linear", "aten.relu")
    assert (most.module, most.origin) == ("bot.0", "et#4")
    assert timeline.step_time == 8.0 + 400.0 + 1.0 + 100.0
    # half of its kernel goes, and of the 1 + 2 + 5 us of T1, T2 and T4 that lead to it
    assert most.step_time == timeline.step_time - 200.0 - 4.0
    assert most.saved == 204.0


def test_an_empty_timeline_has_nothing_to_save() -> None:
    assert sensitivity(Timeline((), ())) == ([], [])


def test_a_family_and_a_cause_may_vanish() -> None:
    step = priced((Op("aten.linear"), [kernel(400.0)]), (Op("aten.sum"), [kernel(50.0, "reduce")]))
    timeline = simulate(step, FlatHost(), accounting=PAPER)
    found = {s.name: s.saved for s in sensitivity(timeline, factor=math.inf)[1]}
    # without the gemm the host is behind: it needs 16 and 8 us until the reduction may start
    assert timeline.step_time == 459.0
    assert found["gemm"] == 459.0 - (16.0 + 8.0 + 50.0)
    assert found["reduce"] == 50.0
    assert found["T1"] == 1.0
    assert found["gap"] == 1.0


@given(steps())
def test_ten_operations_that_save_most_are_the_ten_of_all(
    drawn: tuple[Priced, FlatHost],
) -> None:
    timeline = simulate(drawn[0], drawn[1], accounting=BLOCKING)
    every, _ = sensitivity(timeline, top=1000)
    assert [s.saved for s in sensitivity(timeline, top=2)[0]] == [s.saved for s in every[:2]]


@given(steps(), st.sampled_from(["T1", "T5"]))
def test_a_faster_cause_is_a_faster_host(drawn: tuple[Priced, FlatHost], cause: str) -> None:
    timeline = simulate(drawn[0], drawn[1], accounting=BLOCKING)
    found = {s.name: s.step_time for s in sensitivity(timeline)[1]}
    costs = drawn[1].costs
    faster = replace(costs, **{cause.lower(): getattr(costs, cause.lower()) / 2})
    again = simulate(drawn[0], _host(faster), accounting=BLOCKING).step_time
    assert found.get(cause, again) == pytest.approx(again)


def _host(costs: Overheads) -> Host:
    return FlatHost(costs)


def test_ten_operations_are_told_where_nothing_else_is_asked_for() -> None:
    timeline = simulate(priced(*((Op(f"a.a{k}"), [kernel(100.0)]) for k in range(14))), FlatHost())
    assert len(sensitivity(timeline)[0]) == 10
    assert len(sensitivity(timeline, top=12)[0]) == 12


@given(drawn_tasks(pools=0), st.sampled_from([1.5, 2.0, math.inf]))
def test_savings_of_operations_are_those_of_another_run(tasks: Tasks, factor: float) -> None:
    order = np.argsort(tasks.op, kind="stable")  # only the order of ops: waits stay as drawn
    tasks = replace(tasks, op=tasks.op[order])
    _, ends = run(tasks)
    ops = np.unique(tasks.op[tasks.op >= 0])
    savings = op_savings(tasks, tasks.length, ends, ops, factor)
    for op, saving in zip(ops.tolist(), savings.tolist(), strict=True):
        lengths = np.where(tasks.op == op, tasks.length / factor, tasks.length)
        assert saving == pytest.approx(ends.max() - run(tasks, lengths)[1].max(), abs=1e-9)


@given(drawn_tasks(pools=0))
def test_savings_of_interleaved_operations_are_unknown(tasks: Tasks) -> None:
    _, ends = run(tasks)
    ops = np.unique(tasks.op[tasks.op >= 0])
    owners = [op for op, _ in itertools.groupby(tasks.op[tasks.op >= 0].tolist())]
    savings = op_savings(tasks, tasks.length, ends, ops, 2.0)
    for op, saving in zip(ops.tolist(), savings.tolist(), strict=True):
        assert math.isinf(saving) == (owners.count(op) > 1)


def test_equal_operations_are_tried_in_one_batch() -> None:
    """Where host and device take nearly as long, no operation saves as much as its time."""
    work = [(Op("aten.relu"), [kernel(16.0)]) for _ in range(400)]
    timeline = simulate(priced(*work), FlatHost())
    with pytest.MonkeyPatch.context() as patch:
        batches: list[int] = []
        original = sensitivity_module._op_step_times

        def counted(columns: Intervals, ops: Sequence[int], factor: float) -> list[float]:
            batches.append(len(ops))
            return original(columns, ops, factor)

        patch.setattr(sensitivity_module, "_op_step_times", counted)
        sensitivity(timeline)
    assert batches == [64]
