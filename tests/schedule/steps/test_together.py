"""Many steps timed together, against one after the other: to the last digit."""

from __future__ import annotations

import numpy as np
import pytest

from irgraph.schedule.steps.batch import MAX_CHAIN_TASKS, MAX_SETS, times_of
from irgraph.schedule.tasks import TaskBuilder, Tasks, run
from irgraph.schedule.timeline import busy_time

HOST, STREAM = 0, 1


def a_step(choose: np.random.Generator, launches: int, streams: int = 1) -> Tasks:
    """Return a host that launches kernels on streams, and now and then waits for one."""
    build = TaskBuilder()
    for _ in range(launches):
        for _ in range(
            int(choose.integers(0, 2 * MAX_CHAIN_TASKS if choose.random() < 0.02 else 4))
        ):
            build.add(HOST, "T1", float(choose.uniform(0, 9)))
        launched = build.add(HOST, "T4", float(choose.uniform(0, 9)))
        stream = int(choose.integers(STREAM, STREAM + streams))
        build.add(stream, "gap", 1.0)
        ready = build.add(stream, "latency", 2.0, waits=(launched,), ordered=False)
        kernel = build.add(stream, "kernel", 0.0, waits=(ready,))
        if choose.random() < 0.1:
            build.add(HOST, "sync", 3.5, waits=(kernel,))
    return build.tasks()


@pytest.mark.parametrize(
    ("seed", "sets", "streams"),
    [
        (0, 1, 1),
        (1, 3, 1),
        (2, MAX_SETS + 2, 1),
        (4, 3, 2),
    ],
)
def test_each_has_the_times_that_it_has_alone(seed: int, sets: int, streams: int) -> None:
    choose = np.random.default_rng(seed)
    tasks = a_step(choose, 60, streams)
    work = np.flatnonzero(tasks.has_cause("kernel"))
    rows = choose.integers(0, 7, len(work))
    kernels = choose.uniform(0, 40, (7, sets))
    found = times_of(tasks, work, rows, kernels, 0.5)
    for at in range(sets):
        lengths = tasks.length.copy()
        lengths[work] = kernels[rows, at] + 0.5
        start, end = run(tasks, lengths)
        assert found.step[at] == end.max()
        assert found.active[at] == busy_time(start[work], end[work])


def test_no_sets_have_no_times() -> None:
    tasks = a_step(np.random.default_rng(3), 2)
    work = np.flatnonzero(tasks.has_cause("kernel"))
    assert not times_of(tasks, work, np.zeros(len(work), np.int64), np.zeros((1, 0))).step.size


def test_a_step_may_be_shorter_than_a_microsecond() -> None:
    build = TaskBuilder()
    launched = build.add(HOST, "T4", 0.125)
    build.add(STREAM, "kernel", 0.0, waits=(launched,))
    found = times_of(build.tasks(), np.array([1]), np.array([0]), np.array([[0.25, 0.5]]))
    assert found.step.tolist() == [0.375, 0.625]
    assert found.active.tolist() == [0.25, 0.5]
