"""Many steps of one structure, timed together: the same tasks with other lengths of device work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from irgraph.schedule.sharing import Links, run_sharing
from irgraph.schedule.tasks import Floats, Ints, Tasks
from irgraph.schedule.timeline import busy_time

WIDTH = 4096
"""Most sets of lengths that go through the tasks together: each task costs less for each of them,
until its array leaves the processor's cache."""

CELLS = 8_000_000
"""Most lengths of device work that are kept at once, 64 MB."""

TURNED = 64
"""Sets whose lengths are turned together, for their sums: few enough for a cache."""

LONGEST = 64
"""Tasks of a chain: what waits for one of them follows soon."""


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
        rows: the row of ``times`` that each of them takes, ``int64[work]``.
        times: microseconds, ``float64[kernels, sets]``.
        extra: microseconds that are added to each.
        chains: what ``chains_of`` says of the tasks, if it is known.
    """
    sets = times.shape[1]
    alone = len(np.unique(tasks.resource[work])) > 1 or bool(tasks.shared_pools)
    if chains is None:
        chains = [] if alone else chains_of(tasks, work)
    width = max(1, min(WIDTH, CELLS // max(1, len(work))))
    found = []
    for at in range(0, sets, width):
        some = times[:, at : at + width] + extra
        if alone:
            found.append(_one_by_one(tasks, work, some[rows]))
        else:
            lengths = [some[row] for row in rows.tolist()]
            found.append(_together(tasks, chains, work, lengths, some.shape[1]))
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


def _together(
    tasks: Tasks, chains: Sequence[Chain], work: Ints, lengths: Sequence[Floats], sets: int
) -> Times:
    """Time steps whose work is on one stream, so that none overlaps."""
    every: list[float | Floats] = list(tasks.length.tolist())
    for at, length in zip(work.tolist(), lengths, strict=True):
        every[at] = length
    step, busy = ends_of(chains, every, (len(work), sets))
    active = np.empty(sets)
    for at in range(0, sets, TURNED):
        # The sum of a row is added up as that of a vector of its own is.
        some = slice(at, at + TURNED)
        active[some] = np.ascontiguousarray(busy[:, some].T).sum(axis=1)
    return Times(step, active)


class Chain(NamedTuple):
    """Tasks of which each waits for the one before it alone.

    Attributes:
        waits: what the first of them waits for.
        tasks: for each its position, its row among the watched tasks (-1 for none), and whether
            other chains wait for it.
        over: tasks outside that no later chain waits for.
        last: whether no task waits for the end of the chain.
    """

    waits: tuple[int, ...]
    tasks: list[tuple[int, int, bool]]
    over: list[int]
    last: bool


def chains_of(tasks: Tasks, watched: Ints) -> list[Chain]:
    """Return the chains of tasks in topological order."""
    row = dict(zip(watched.tolist(), range(len(watched)), strict=True))
    members: list[list[int]] = []
    chain_of: dict[int, list[int]] = {}  # by its last task
    for task, waits in enumerate(tasks.wait_lists):
        chain = chain_of.pop(waits[0], None) if len(waits) == 1 else None
        if chain is None or len(chain) >= LONGEST:
            chain = []
            members.append(chain)
        chain.append(task)
        chain_of[task] = chain
    heads = [tasks.wait_lists[chain[0]] for chain in members]
    final = {other: at for at, waits in enumerate(heads) for other in waits}
    over: list[list[int]] = [[] for _ in members]
    for other, at in final.items():
        over[at].append(other)
    return [
        Chain(
            tuple(waits),
            [(task, row.get(task, -1), task in final) for task in chain],
            done,
            chain[-1] not in final,
        )
        for waits, chain, done in zip(heads, members, over, strict=True)
    ]


def ends_of(
    chains: Sequence[Chain], lengths: Sequence[Floats | float], shape: tuple[int, int]
) -> tuple[Floats, Floats]:
    """Return when the last task ends, ``float64[sets]``, and how long the watched ones took.

    These are ``float64[watched, sets]``, the ``shape``: ends less starts. ``lengths`` gives those
    of each task, ``float64[sets]`` or one for all.
    """
    ends: dict[int, Floats | float] = {}
    took = np.empty(shape)
    last: Floats | float = 0.0
    for waits, tasks, over, final in chains:
        latest = _latest(ends, waits)
        for task, row, kept in tasks:
            end = latest + lengths[task]
            if row >= 0:
                np.subtract(end, latest, out=took[row])
            if kept:
                ends[task] = end
            latest = end
        if final:
            last = np.maximum(last, latest)
        for other in over:
            del ends[other]
    return np.broadcast_to(last, shape[1:]).astype(np.float64), took


def _latest(ends: Mapping[int, Floats | float], waits: Sequence[int]) -> Floats | float:
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
