"""Many steps under many draws: folded into nodes, against one step after the other."""

from __future__ import annotations

import numpy as np
import pytest

from irgraph.schedule.steps.node_graph import NodeGraph
from irgraph.schedule.steps.passes import BATCH_STEPS, ends_under_draws
from irgraph.schedule.steps.products import KernelSamples
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


def launches(choose: np.random.Generator) -> Tasks:
    """Return kernels that a host launches, of which it waits for some."""
    build = TaskBuilder()
    for _ in range(int(choose.integers(1, 30))):
        launched = build.add(0, "T4", float(choose.uniform(0, 9)))
        stream = int(choose.integers(1, 3)) if choose.random() < 0.2 else 1
        build.add(stream, "gap", 1.0)
        kernel = build.add(stream, "kernel", 5.0, waits=(launched,))
        if choose.random() < 0.15:
            build.add(0, "sync", 1.0, waits=(kernel,))
    return build.tasks()


@pytest.mark.parametrize("seed", range(60))
def test_steps_end_when_each_alone_does(seed: int) -> None:
    """Also where errors are so large that work would take less than no time."""
    choose = np.random.default_rng(seed)
    tasks = (launches if seed % 2 else a_step)(choose)
    work = np.flatnonzero(tasks.has_cause("kernel"))
    if not len(work):
        work = np.flatnonzero(choose.random(len(tasks)) < choose.random())
    steps = int(choose.integers(1, 2 * BATCH_STEPS))
    kernels = int(choose.integers(1, 9))
    own = KernelSamples(
        choose.integers(0, kernels, len(work)),
        choose.uniform(0, 5, (kernels, steps)),
        choose.uniform(0, 3, (kernels, steps)),
        choose.integers(0, 2, kernels),
        choose.standard_normal((2, DRAWS)),
    )
    drawn = choose.uniform(0, 5, (len(tasks), DRAWS))
    lengths = [row if choose.random() < 0.7 else float(row[0]) for row in drawn]
    collapsed = NodeGraph(tasks, work)
    folded = np.zeros((len(collapsed.folds), DRAWS))
    for fold, length in zip(collapsed.fold_by_task.tolist(), lengths, strict=True):
        if fold >= 0:
            folded[fold] += length
    found = ends_under_draws(collapsed, folded, own)
    for step in range(steps):
        alone = list(lengths)
        for row, task in zip(own.rows.tolist(), work.tolist(), strict=True):
            error = own.deviations[row, step] * own.errors[own.families[row]]
            alone[task] = np.maximum(own.lengths[row, step] + error, 0.0)
        assert found[step] == pytest.approx(last_ends(tasks, alone, DRAWS), rel=1e-12)


def test_a_step_of_nothing_ends_at_once() -> None:
    none = np.zeros((0, 3))
    nothing = np.zeros(0, np.int64)
    work = KernelSamples(nothing, none, none, nothing, np.zeros((0, DRAWS)))
    assert not ends_under_draws(
        NodeGraph(TaskBuilder().tasks(), nothing), np.zeros((0, DRAWS)), work
    ).any()
