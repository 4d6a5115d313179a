"""Tasks as columns: one pass gives the times, for one set of lengths or many, shared or not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.schedule.intervals import Intervals
from irgraph.schedule.sharing import run_sharing
from irgraph.schedule.tasks import (
    TaskBuilder,
    Tasks,
    last_ends,
    longest_chain,
    run,
    topological_order,
    total_float,
)


@st.composite
def drawn_tasks(draw: st.DrawFn, pools: int = 2) -> Tasks:
    """Draw up to thirty tasks of four resources with waits and shared pools."""
    build = TaskBuilder()
    for position in range(draw(st.integers(1, 30))):
        length = draw(st.floats(0.0, 100.0))
        earlier = st.integers(0, position - 1) if position else st.nothing()
        build.add(
            draw(st.integers(0, 3)),
            draw(st.sampled_from(["a", "b"])),
            length,
            op=draw(st.integers(-1, 2)),
            pool=draw(st.integers(-1, pools - 1)),
            waits=draw(st.lists(earlier, max_size=2)) if position else (),
        )
    return build.tasks()


@given(drawn_tasks())
def test_a_task_starts_when_the_last_it_waits_for_has_ended(tasks: Tasks) -> None:
    start, end = run(tasks)
    for task in range(len(tasks)):
        waits = tasks.waits(task)
        assert start[task] == (end[waits].max() if len(waits) else 0.0)
        assert end[task] == start[task] + tasks.length[task]


@given(drawn_tasks(), st.lists(st.floats(0.0, 3.0), min_size=1, max_size=4))
def test_many_sets_of_lengths_are_as_many_runs(tasks: Tasks, scales: list[float]) -> None:
    lengths = tasks.length[:, None] * np.array(scales)
    found = last_ends(tasks, lengths, len(scales))
    for column in range(len(scales)):
        assert found[column] == run(tasks, lengths[:, column])[1].max(initial=0.0)


@given(drawn_tasks(pools=0))
def test_without_sharing_the_events_give_the_same_times(tasks: Tasks) -> None:
    # a pool for each resource: events are run, and nobody shares
    alone = replace(tasks, pool=tasks.resource)
    assert alone.shared_pools == []
    joined = TaskBuilder()
    for position in range(len(tasks)):
        waits, resource = tasks.waits(position), int(tasks.resource[position])
        joined.add(resource, "a", tasks.length[position], pool=resource, waits=waits, ordered=False)
    # a far-away pair that does share forces the event-driven run
    for resource in (8, 9):
        joined.add(resource, "a", 0.0, pool=8)
    start, end = run_sharing(joined.tasks())
    expected = run(tasks)
    assert start[: len(tasks)] == pytest.approx(expected[0])
    assert end[: len(tasks)] == pytest.approx(expected[1])


@given(drawn_tasks())
def test_sharing_takes_nobodys_work_away(tasks: Tasks) -> None:
    start, end = run_sharing(tasks)
    alone = run(tasks)[1]
    assert (end >= alone - 1e-6).all()
    assert (end - start >= tasks.length - 1e-6).all()
    for pool in range(2):
        mine = tasks.pool == pool
        if mine.any():
            # no more work is done in a stretch than fits
            assert tasks.length[mine].sum() <= end[mine].max() - start[mine].min() + 1e-6


@given(drawn_tasks())
def test_the_longest_chain_has_no_holes(tasks: Tasks) -> None:
    start, end = run_sharing(tasks)
    chain = longest_chain(tasks, end)
    assert end[chain[-1]] == end.max()
    assert start[chain[0]] == 0.0
    assert (start[chain[1:]] == end[chain[:-1]]).all()
    assert total_float(tasks, end, end - start)[chain] == pytest.approx(0.0, abs=1e-6)


def test_two_that_share_from_the_middle() -> None:
    build = TaskBuilder()
    build.add(0, "k", 10.0, pool=0)
    build.add(1, "wait", 6.0)
    build.add(1, "k", 2.0, pool=0)
    start, end = run_sharing(build.tasks())
    # four are left of the first at 6; the second has its two by 10, the first its own by 12
    assert start.tolist() == [0.0, 0.0, 6.0]
    assert end.tolist() == [12.0, 6.0, 10.0]


def test_tasks_are_put_in_an_order_that_serves_their_waits() -> None:
    assert topological_order([[2], [0], []]) == [2, 0, 1]
    with pytest.raises(ValueError, match="wait for each other"):
        topological_order([[1], [0]])


@given(drawn_tasks(), st.integers(0, 3), st.integers(0, 3))
def test_an_interval_is_the_same_however_it_is_reached(
    tasks: Tasks, ops: int, kernels: int
) -> None:
    """By its position, in a slice, or one after the other."""
    count = len(tasks)
    numbered = replace(
        tasks,
        op=np.arange(count, dtype=np.int64) % (ops + 1) - 1,
        kernel=np.arange(count, dtype=np.int64) % (kernels + 1) - 1,
    )
    known = [Op(f"aten.{name}") for name in "abc"[:ops]]
    work = [Kernel(name, "gemm", 1.0) for name in "abc"[:kernels]]
    columns = Intervals(numbered, *run(numbered), known, work)
    one_by_one = list(columns)
    assert one_by_one == [columns[at] for at in range(count)] == columns[:]
    for at, interval in enumerate(one_by_one):
        op, kernel = at % (ops + 1) - 1, at % (kernels + 1) - 1
        assert interval.op is (known[op] if op >= 0 else None)
        assert interval.kernel is (work[kernel] if kernel >= 0 else None)
        assert interval.after == tuple(numbered.waits(at).tolist())
