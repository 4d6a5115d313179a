"""Waits that follow from others are left out, and no time changes by it."""

from __future__ import annotations

import numpy as np
import pytest

from irgraph.schedule.steps.reduced_waits import reduced_waits
from irgraph.schedule.tasks import TaskBuilder, Tasks
from tests.schedule.steps.test_node_graph import a_step, launches


def ended(tasks: Tasks, waited: list[list[int]]) -> list[float]:
    """Return when each task ends if it waits for some tasks."""
    ends: list[float] = []
    for length, waits in zip(tasks.length.tolist(), waited, strict=True):
        ends.append(max((ends[wait] for wait in waits), default=0.0) + length)
    return ends


@pytest.mark.parametrize("seed", range(40))
def test_tasks_end_when_they_did(seed: int) -> None:
    choose = np.random.default_rng(seed)
    tasks = (launches if seed % 2 else a_step)(choose)
    needed = reduced_waits(tasks)
    assert ended(tasks, needed) == ended(tasks, tasks.wait_lists)
    assert all(set(few) <= set(all_) for few, all_ in zip(needed, tasks.wait_lists, strict=True))


def test_a_launch_does_not_wait_again_for_work_that_the_host_has_seen_end() -> None:
    """As where a queue takes two launches; what the host has not seen is waited for."""
    build = TaskBuilder()
    first = build.add(1, "kernel", 9.0, waits=[build.add(0, "T4", 1.0)])
    second = build.add(1, "kernel", 9.0, waits=[build.add(0, "T4", 1.0)])
    synced = build.add(0, "sync", 1.0, waits=[first])
    third = build.add(0, "T4", 1.0, waits=[first])
    fourth = build.add(0, "T4", 1.0, waits=[second])
    needed = reduced_waits(build.tasks())
    assert needed[third] == [synced]
    assert needed[fourth] == [third, second]
