"""Many steps of one structure, timed together: the same tasks with other lengths of device work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from irgraph.schedule.sharing import Links, run_sharing
from irgraph.schedule.tasks import Floats, Ints, Tasks
from irgraph.schedule.timeline import busy_time

MAX_SETS = 4096
"""Maximum number of sets of lengths in one pass over the tasks: larger passes cost less for each
set, until the array of a task leaves the processor's cache."""

MAX_CELLS = 8_000_000
"""Maximum number of lengths of device work in memory, 64 MB."""

TRANSPOSED_SETS = 64
"""Sets whose lengths are transposed together to be summed: few enough for a cache."""

MAX_CHAIN_TASKS = 64
"""Maximum number of tasks in a chain: the tasks that wait for one of them follow soon."""


class Times(NamedTuple):
    """Microseconds of steps, and of the work in them, ``float64[sets]`` each."""

    step: Floats
    active: Floats


def times_of(
    tasks: Tasks,
    work: Ints,
    rows: Ints,
    times: Floats,
    extra: float = 0.0,
    chains: Sequence[Chain] | None = None,
) -> Times:
    """Return the times of steps that differ in their device work alone.

    Args:
        tasks: of one of the steps.
        work: the tasks that are device work, ``int64[work]``.
        rows: the row of ``times`` that each of them uses, ``int64[work]``.
        times: microseconds, ``float64[kernels, sets]``.
        extra: microseconds that are added to each.
        chains: the result of ``chains_of`` for the tasks, if it is available.
    """
    sets = times.shape[1]
    is_overlapping = len(np.unique(tasks.resource[work])) > 1 or bool(tasks.shared_pools)
    if chains is None:
        chains = [] if is_overlapping else chains_of(tasks, work)
    width = max(1, min(MAX_SETS, MAX_CELLS // max(1, len(work))))
    chunks = []
    for first in range(0, sets, width):
        chunk = times[:, first : first + width] + extra
        if is_overlapping:
            chunks.append(_time_each(tasks, work, chunk[rows]))
        else:
            lengths = [chunk[row] for row in rows.tolist()]
            chunks.append(_time_together(tasks, chains, work, lengths, chunk.shape[1]))
    if not chunks:
        return Times(np.zeros(0), np.zeros(0))
    return Times(*(np.concatenate(column) for column in zip(*chunks, strict=True)))


def lengths_of(tasks: Tasks, work: Ints, rows: Ints, times: Floats, extra: float = 0.0) -> Floats:
    """Return the durations of device work, some of which shares the device.

    ``float64[work, sets]`` in microseconds; arguments as of ``times_of``.
    """
    lengths = times[rows] + extra
    if not tasks.shared_pools:
        return lengths
    links = Links(tasks)
    for column in range(lengths.shape[1]):
        task_lengths: NDArray[np.float64] = tasks.length.copy()
        task_lengths[work] = lengths[:, column]
        start, end = run_sharing(tasks, task_lengths, links)
        lengths[:, column] = (end - start)[work]
    return lengths


def _time_together(
    tasks: Tasks, chains: Sequence[Chain], work: Ints, lengths: Sequence[Floats], sets: int
) -> Times:
    """Return the times of steps whose work is on one stream, so that none overlaps."""
    task_lengths: list[float | Floats] = list(tasks.length.tolist())
    for task, length in zip(work.tolist(), lengths, strict=True):
        task_lengths[task] = length
    step, busy = ends_of(chains, task_lengths, (len(work), sets))
    active = np.empty(sets)
    for first in range(0, sets, TRANSPOSED_SETS):
        # numpy adds up a contiguous row in the same order as a separate vector
        columns = slice(first, first + TRANSPOSED_SETS)
        active[columns] = np.ascontiguousarray(busy[:, columns].T).sum(axis=1)
    return Times(step, active)


class Chain(NamedTuple):
    """Tasks, each of which waits only for the one before it.

    Attributes:
        waits: the tasks that the first of them waits for.
        tasks: for each its position, its row among the watched tasks (-1 for none), and whether
            other chains wait for it.
        last_uses: tasks of other chains that no later chain waits for.
        is_last: whether no task waits for the end of the chain.
    """

    waits: tuple[int, ...]
    tasks: list[tuple[int, int, bool]]
    last_uses: list[int]
    is_last: bool


def chains_of(tasks: Tasks, watched: Ints) -> list[Chain]:
    """Return the chains of tasks in topological order."""
    row_by_task = dict(zip(watched.tolist(), range(len(watched)), strict=True))
    chain_tasks: list[list[int]] = []
    chain_of: dict[int, list[int]] = {}  # by its last task
    for task, waits in enumerate(tasks.wait_lists):
        chain = chain_of.pop(waits[0], None) if len(waits) == 1 else None
        if chain is None or len(chain) >= MAX_CHAIN_TASKS:
            chain = []
            chain_tasks.append(chain)
        chain.append(task)
        chain_of[task] = chain
    heads = [tasks.wait_lists[chain[0]] for chain in chain_tasks]
    last_user = {other: index for index, waits in enumerate(heads) for other in waits}
    last_uses_by_chain: list[list[int]] = [[] for _ in chain_tasks]
    for other, index in last_user.items():
        last_uses_by_chain[index].append(other)
    return [
        Chain(
            tuple(waits),
            [(task, row_by_task.get(task, -1), task in last_user) for task in chain],
            last_uses,
            chain[-1] not in last_user,
        )
        for waits, chain, last_uses in zip(heads, chain_tasks, last_uses_by_chain, strict=True)
    ]


def ends_of(
    chains: Sequence[Chain], lengths: Sequence[Floats | float], shape: tuple[int, int]
) -> tuple[Floats, Floats]:
    """Return the end of the last task, ``float64[sets]``, and the durations of the watched tasks.

    Durations are ends less starts, an array of this ``shape``, ``float64[watched, sets]``.
    ``lengths`` has the lengths of each task, ``float64[sets]`` or one for all sets.
    """
    ends: dict[int, Floats | float] = {}
    durations = np.empty(shape)
    last: Floats | float = 0.0
    for waits, tasks, last_uses, is_last in chains:
        latest = _latest(ends, waits)
        for task, row, is_awaited in tasks:
            end = latest + lengths[task]
            if row >= 0:
                np.subtract(end, latest, out=durations[row])
            if is_awaited:
                ends[task] = end
            latest = end
        if is_last:
            last = np.maximum(last, latest)
        for other in last_uses:
            del ends[other]
    return np.broadcast_to(last, shape[1:]).astype(np.float64), durations


def _latest(ends: Mapping[int, Floats | float], waits: Sequence[int]) -> Floats | float:
    if not waits:
        return 0.0
    latest = ends[waits[0]]
    for other in waits[1:]:
        end = ends[other]
        are_numbers = isinstance(latest, float) and isinstance(end, float)
        latest = max(latest, end) if are_numbers else np.maximum(latest, end)
    return latest


def _time_each(tasks: Tasks, work: Ints, lengths: Floats) -> Times:
    """Simulate each step separately: with several streams, overlap and sharing differ."""
    step, active = [], []
    links = Links(tasks) if tasks.shared_pools else None
    for column in lengths.T:
        task_lengths: NDArray[np.float64] = tasks.length.copy()
        task_lengths[work] = column
        start, end = run_sharing(tasks, task_lengths, links)
        step.append(end.max(initial=0.0))
        active.append(busy_time(start[work], end[work]))
    return Times(np.array(step), np.array(active))
