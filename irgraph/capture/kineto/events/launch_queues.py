"""Queues of launches: how many wait for each stream, and which launches found a full queue.

A driver accepts a bounded number of launches for a stream. A further launch blocks the host until
the device takes one from the queue, so that its duration follows the kernels instead of the host.
The bound is inferred from the trace: CUDA's shows as about 1,022 launches, and HIP has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from irgraph.capture.kineto.events.tree import Tree
from irgraph.capture.kineto.reading.trace import Array, Integers

Stream: TypeAlias = tuple[int, int]
"""Device and stream."""

MAX_REST = 2.0
"""Maximum time of a blocked launch after the device made room, in medians of other launches."""

MIN_BLOCKED = 3
"""Minimum number of blocked launches that establish a limit if they are hardly longer than others.
"""

MIN_LONGER = 1.2
"""Minimum median duration of blocked launches, in medians of other launches."""

MIN_UPPER = 1.5
"""Minimum upper quantile of their durations in medians of other launches, if half hardly wait."""

MANY = 20
"""Number of launches whose upper tenth is compared instead of their upper quarter."""

LONG = 4.0
"""Duration of a launch in medians of others at which a nearly full queue was full: the driver sees
the device's progress some microseconds late."""

NEARLY_FULL = 0.95
"""Share of the limit at which a queue is nearly full: streams share hardware, and a launch may take
more than one place."""


class Release(NamedTuple):
    """The work that made room for a blocked launch, and the nanosecond at which it did.

    Attributes:
        work: row of the device event.
        time: nanoseconds; not before the start of the launch.
    """

    work: int
    time: int


@dataclass(slots=True)
class LaunchQueue:
    """Launches of one stream.

    Attributes:
        calls: rows of the launching calls, in order of their starts.
        works: row of the device event that leaves the queue for each launch.
        limit: maximum number of launches in the queue, 0 if the trace shows none.
        until_end: whether a launch leaves the queue when its work ends, instead of when it starts.
        releases: by row of a blocked launch, the work that made room for it.
    """

    calls: Integers
    works: Integers
    limit: int = 0
    until_end: bool = False
    releases: dict[int, Release] = field(default_factory=dict)


@dataclass(slots=True)
class LaunchQueues:
    """Queues of all streams of a trace.

    Attributes:
        by_stream: queues by device and stream.
        releases: by row of a blocked launch, the work that made room for it.
    """

    by_stream: dict[Stream, LaunchQueue]
    releases: dict[int, Release]
    _work_before: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for queue in (q for q in self.by_stream.values() if q.limit):
            pairs = zip(queue.calls[queue.limit :], queue.works[: -queue.limit], strict=True)
            self._work_before |= {int(call): int(work) for call, work in pairs}

    def work_before(self, call: int) -> int:
        """Return the work that has to leave the queue before a call can launch, -1 for none."""
        return self._work_before.get(call, -1)

    def until_end(self, stream: Stream) -> bool:
        """Return whether the launches of a stream leave its queue when their work ends."""
        return self.by_stream[stream].until_end


class _Candidate(NamedTuple):
    """A limit that may explain the durations of launches.

    Attributes:
        limit: maximum number of launches in the queue.
        full: mask of the launches that found a full queue.
        releases: positions of the work that made room, and nanoseconds, for each launch.
    """

    limit: int
    full: Array
    releases: tuple[Integers, Integers]


def launch_queues(tree: Tree) -> LaunchQueues:
    """Return the launch queues of a trace, with the limits that its launches show."""
    by_stream = {stream: _queue(tree, rows) for stream, rows in _rows_by_stream(tree)}
    releases: dict[int, Release] = {}
    for queue in by_stream.values():
        releases |= queue.releases
    return LaunchQueues(by_stream, releases)


def _rows_by_stream(tree: Tree) -> Iterator[tuple[Stream, Integers]]:
    """Yield the launched device events of each stream, in order of their starts."""
    columns = tree.trace.columns
    rows = np.flatnonzero(tree.trace.on_device & (tree.launch >= 0))
    order = np.lexsort((columns["start"][rows], columns["stream"][rows], columns["device"][rows]))
    rows = rows[order]
    streams = np.stack([columns["device"][rows], columns["stream"][rows]], axis=1)
    borders = np.flatnonzero((streams[1:] != streams[:-1]).any(axis=1)) + 1
    for part in np.split(rows, borders):
        if len(part):
            yield (int(columns["device"][part[0]]), int(columns["stream"][part[0]])), part


def _queue(tree: Tree, rows: Integers) -> LaunchQueue:
    """Return the queue of one stream."""
    start = tree.trace.columns["start"]
    calls, positions = np.unique(tree.launch[rows], return_index=True)
    order = np.argsort(start[calls], kind="stable")
    calls, works = calls[order], rows[positions[order]]
    ends = _last_ends(tree, rows, calls)
    queue = LaunchQueue(calls, works)
    candidates = [
        (until_end, candidate)
        for until_end, times in ((False, start[works]), (True, ends))
        if (candidate := _candidate(tree, calls, times)) is not None
    ]
    if candidates:
        queue.until_end, best = max(candidates, key=lambda pair: int(pair[1].full.sum()))
        queue.limit = best.limit
        queue.releases = _releases(tree, queue, best)
    return queue


def _last_ends(tree: Tree, rows: Integers, calls: Integers) -> Integers:
    """Return the end of the last work of each call."""
    ends = np.zeros(len(tree.trace), "i8")
    np.maximum.at(ends, tree.launch[rows], tree.trace.end[rows])
    last_ends: Integers = ends[calls]
    return last_ends


def _candidate(tree: Tree, calls: Integers, times: Integers) -> _Candidate | None:
    """Return the limit of launches that leave the queue at some times, ``None`` if there is none.

    A queue is never longer than its limit after a launch. So a launch that finds as many as ever
    follow a launch has waited, and must return soon after the next of them leaves the queue.
    """
    starts, ends = tree.trace.columns["start"][calls], tree.end[calls]
    numbers = np.arange(len(calls))
    order = np.argsort(times, kind="stable")
    leaving = times[order]
    before = numbers - np.searchsorted(leaving, starts, side="right")
    limit = int((numbers + 1 - np.searchsorted(leaving, ends, side="right")).max())
    full = (before >= limit) & (numbers >= limit)
    if not full.any() or full.all():
        return None
    durations = ends - starts
    typical = float(np.median(durations[~full]))
    first = np.maximum(numbers - limit, 0)
    released = np.maximum(leaving[first], starts)
    if not _follow_kernels(durations[full], (ends - released)[full], typical):
        return None
    nearly_full = (before >= NEARLY_FULL * limit) & (durations > LONG * typical) & ~full
    latest = np.maximum(np.searchsorted(leaving, ends, side="right") - 1, 0)
    first = np.where(nearly_full, latest, first)
    released = np.maximum(leaving[first], starts)
    return _Candidate(limit, full | nearly_full, (order[first], released))


def _follow_kernels(durations: Integers, rest: Integers, typical: float) -> bool:
    """Return whether launches that found a full queue waited for the kernels in it."""
    if float(np.quantile(rest, 0.8)) > MAX_REST * typical:
        return False
    if len(durations) < MIN_BLOCKED:
        return bool((durations > MAX_REST * typical).all())
    share = 0.9 if len(durations) >= MANY else 0.75
    middle, upper = np.quantile(durations, (0.5, share))
    return bool(middle > MIN_LONGER * typical or upper > MIN_UPPER * typical)


def _releases(tree: Tree, queue: LaunchQueue, candidate: _Candidate) -> dict[int, Release]:
    """Return the work that made room, by row of the blocked launch."""
    positions, times = (values[candidate.full] for values in candidate.releases)
    rows = zip(
        queue.calls[candidate.full].tolist(),
        queue.works[positions].tolist(),
        times.tolist(),
        strict=True,
    )
    return {call: Release(work, time) for call, work, time in rows}
