"""Many steps under many draws: folded into nodes, against one step after the other."""

from __future__ import annotations

import numpy as np
import pytest

from irgraph.schedule.steps.collapsed import TOGETHER, Collapsed, Work
from irgraph.schedule.tasks import TaskBuilder, Tasks, last_ends

DRAWS = 7


def a_step(choose: np.random.Generator) -> Tasks:
    """Return tasks on several resources that wait for some of those before them."""
    build = TaskBuilder()
    for number in range(int(choose.integers(1, 60))):
        waits = choose.integers(0, number, int(choose.integers(0, 3))) if number else ()
        build.add(
            int(choose.integers(0, 3)),
            "T1",
            float(choose.uniform(0, 5)),
            waits=sorted({int(w) for w in waits}),
            ordered=bool(choose.integers(0, 4)),
        )
    return build.tasks()


@pytest.mark.parametrize("seed", range(40))
def test_steps_end_when_each_alone_does(seed: int) -> None:
    """Also where errors are so large that work would take less than no time."""
    choose = np.random.default_rng(seed)
    tasks = a_step(choose)
    work = np.flatnonzero(choose.random(len(tasks)) < choose.random())
    steps = int(choose.integers(1, 2 * TOGETHER))
    own = Work(
        choose.uniform(0, 5, (len(work), steps)),
        choose.uniform(0, 3, (len(work), steps)),
        choose.integers(0, 2, len(work)),
        choose.standard_normal((2, DRAWS)),
    )
    drawn = choose.uniform(0, 5, (len(tasks), DRAWS))
    lengths = [row if choose.random() < 0.7 else float(row[0]) for row in drawn]
    found = Collapsed(tasks, work).ends(lengths, own)
    for step in range(steps):
        alone = list(lengths)
        for row, task in enumerate(work.tolist()):
            error = own.deviations[row, step] * own.errors[own.families[row]]
            alone[task] = np.maximum(own.lengths[row, step] + error, 0.0)
        assert found[step] == pytest.approx(last_ends(tasks, alone, DRAWS), rel=1e-12)


def test_a_step_of_nothing_ends_at_once() -> None:
    none = np.zeros((0, 3))
    work = Work(none, none, np.zeros(0, np.int64), np.zeros((0, DRAWS)))
    nothing = np.zeros(0, np.int64)
    assert not Collapsed(TaskBuilder().tasks(), nothing).ends([], work).any()
