"""Many steps of one structure, timed together: the same tasks with other lengths of device work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from irgraph.schedule.sharing import Links, run_sharing
from irgraph.schedule.tasks import Floats, Ints, Tasks
from irgraph.schedule.timeline import busy_time

WIDTH = 512
"""Sets of lengths that go through the tasks together: few enough for a processor's cache."""


class Times(NamedTuple):
    """Microseconds of steps, and of the work in them, ``float64[sets]`` each."""

    step: Floats
    active: Floats


def times_of(tasks: Tasks, work: Ints, rows: Ints, times: Floats, extra: float = 0.0) -> Times:
    """Return the times of steps that differ in their device work alone.

    Args:
        tasks: of one of the steps.
        work: the tasks that are device work, ``int64[work]``.
        rows: the row of ``times`` that each of them takes, ``int64[work]``.
        times: microseconds, ``float64[kernels, sets]``.
        extra: microseconds that are added to each.
    """
    sets = times.shape[1]
    alone = len(np.unique(tasks.resource[work])) > 1 or bool(tasks.shared_pools)
    found = []
    for at in range(0, sets, WIDTH):
        lengths = times[:, at : at + WIDTH][rows] + extra
        run = _one_by_one if alone else _together
        found.append(run(tasks, work, lengths))
    if not found:
        return Times(np.zeros(0), np.zeros(0))
    return Times(*(np.concatenate(column) for column in zip(*found, strict=True)))


def lengths_of(tasks: Tasks, work: Ints, rows: Ints, times: Floats, extra: float = 0.0) -> Floats:
    """Return how long device work takes where some of it shares the device.

    ``float64[work, sets]``; arguments as of ``times_of``.
    """
    alone = times[rows] + extra
    if not tasks.shared_pools:
        return alone
    links = Links(tasks)
    for column in range(alone.shape[1]):
        every: NDArray[np.float64] = tasks.length.copy()
        every[work] = alone[:, column]
        start, end = run_sharing(tasks, every, links)
        alone[:, column] = (end - start)[work]
    return alone


def _together(tasks: Tasks, work: Ints, lengths: Floats) -> Times:
    """Time steps whose work is on one stream, so that none overlaps."""
    sets = lengths.shape[1]
    every: list[float | Floats] = list(tasks.length.tolist())
    for at, length in zip(work.tolist(), lengths, strict=True):
        every[at] = length
    step, busy = ends_of(tasks, every, sets, work)
    # The sum of a row is added up as that of a vector of its own is.
    return Times(step, np.ascontiguousarray(busy.T).sum(axis=1))


def ends_of(
    tasks: Tasks, lengths: Iterable[Floats | float], sets: int, watched: Ints
) -> tuple[Floats, Floats]:
    """Return when the last task ends, ``float64[sets]``, and how long the watched ones took.

    These are ``float64[watched, sets]``: ends less starts. ``lengths`` gives those of each task in
    turn, ``float64[sets]`` or one for all.
    """
    ends: list[Floats | float] = []
    rows = dict(zip(watched.tolist(), range(len(watched)), strict=True))
    took = np.empty((len(watched), sets))
    last: Floats | float = 0.0
    for at, (length, waits, over) in enumerate(zip(lengths, tasks.waited, tasks.over, strict=True)):
        latest = _latest(ends, waits)
        end = latest + length
        ends.append(end)
        if at in rows:
            np.subtract(end, latest, out=took[rows[at]])
        for other in over:
            ends[other] = -1.0
    for end in ends:
        last = np.maximum(last, end)
    return np.broadcast_to(last, (sets,)).astype(np.float64), took


def _latest(ends: Sequence[Floats | float], waits: Sequence[int]) -> Floats | float:
    if not waits:
        return 0.0
    latest = ends[waits[0]]
    for other in waits[1:]:
        end = ends[other]
        both = isinstance(latest, float) and isinstance(end, float)
        latest = max(latest, end) if both else np.maximum(latest, end)
    return latest


def _one_by_one(tasks: Tasks, work: Ints, lengths: Floats) -> Times:
    """Simulate each step: with several streams, overlap and sharing differ."""
    step, active = [], []
    links = Links(tasks) if tasks.shared_pools else None
    for column in lengths.T:
        every: NDArray[np.float64] = tasks.length.copy()
        every[work] = column
        start, end = run_sharing(tasks, every, links)
        step.append(end.max(initial=0.0))
        active.append(busy_time(start[work], end[work]))
    return Times(np.array(step), np.array(active))
