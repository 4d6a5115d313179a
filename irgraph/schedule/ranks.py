"""Several ranks simulated together: a collective starts when the last rank arrives.

Every rank's schedule keeps its tasks and waits; the n-th collectives of all ranks are taken to be
the same one. A rank's time in a collective is split into waiting for the others and the transfer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from irgraph.diagnostics import fail
from irgraph.ir.cost import Kernel
from irgraph.ir.ranks import EXCHANGING
from irgraph.schedule.simulate import COLLECTIVE
from irgraph.schedule.tasks import Floats, Ints, Tasks, in_order, run
from irgraph.schedule.timeline import Intervals, Resource, Timeline, busy_time

Groups: TypeAlias = Sequence[Mapping[str, tuple[int, ...]]]

SHOWN = 64
"""Ranks that are simulated one by one. Of more, equal ones are simulated once: they meet in every
collective, so what one of them does, all do at the same times."""

UNEVEN = ("all_to_all",)
"""Collectives whose messages may differ in size between ranks."""


def is_collective(kernel: Kernel) -> bool:
    """Return whether a kernel exchanges data: by its family, or by NCCL's names in a trace."""
    return kernel.family == COLLECTIVE or kernel.name.startswith(("nccl", "ncclKernel"))


@dataclass(frozen=True, slots=True)
class Meeting:
    """One collective. Times in microseconds.

    Attributes:
        name: of its kernel on the first rank.
        start: when the last rank arrived.
        transfer: its duration from then on.
        waits: how long each rank waited, 0 where it does not take part.
        last: the rank that arrived last.
    """

    name: str
    start: float
    transfer: float
    waits: tuple[float, ...]
    last: int


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks that were simulated together. Times in microseconds.

    Attributes:
        timeline: of all ranks, of one of each kind where there are many, on one clock; resources
            are named ``rank 0 main`` and so on.
        meetings: the collectives in the order of the first rank.
        steps: from each rank's start to the end of all its work.
        exposed: time in which each rank's device only communicates or waits for ranks.
    """

    timeline: Timeline
    meetings: tuple[Meeting, ...]
    steps: tuple[float, ...]
    exposed: tuple[float, ...]

    def spread(self, kinds: Sequence[int], firsts: Sequence[int]) -> Ranks:
        """Return all ranks, of which the present ones are the kinds.

        Args:
            kinds: by rank, the position of the one that stands for it.
            firsts: by position, the first rank that it stands for.
        """
        meetings = (
            Meeting(m.name, m.start, m.transfer, tuple(m.waits[k] for k in kinds), firsts[m.last])
            for m in self.meetings
        )
        steps, exposed = (tuple(each[k] for k in kinds) for each in (self.steps, self.exposed))
        return Ranks(self.timeline, tuple(meetings), steps, exposed)

    @property
    def step_time(self) -> float:
        """From the start of the first rank to the end of the last."""
        return self.timeline.step_time

    @property
    def waiting(self) -> tuple[float, ...]:
        """Total time that each rank waits for others in collectives."""
        return tuple(sum(m.waits[rank] for m in self.meetings) for rank in range(len(self.steps)))

    @property
    def straggler(self) -> int:
        """The rank that others wait for most: by the waiting where it arrives last."""
        lost: Counter[int] = Counter()
        for meeting in self.meetings:
            lost[meeting.last] += round(1000 * sum(meeting.waits))
        return lost.most_common(1)[0][0] if lost else int(np.argmax(self.steps))


def longest(kernels: Sequence[Kernel]) -> float:
    """Return the longest of the kernels' times, microseconds."""
    return max(kernel.time for kernel in kernels)


def shortest(kernels: Sequence[Kernel]) -> float:
    """Return the shortest of the kernels' times, microseconds."""
    return min(kernel.time for kernel in kernels)


def is_timed(kernel: Kernel) -> bool:
    """Return whether a kernel's time comes from a trace: of a collective it contains waiting."""
    return kernel.by in ("measured", "scaled")


def transfer_time(kernels: Sequence[Kernel]) -> float:
    """Return the transfer time of a collective from its kernel on each rank; microseconds.

    Measured times contain waiting: their minimum over ranks counts. Modelled ones contain none:
    their maximum counts, and measured ones beside them are ignored.
    """
    modelled = [kernel for kernel in kernels if not is_timed(kernel)]
    return longest(modelled) if modelled else shortest(kernels)


def simulate_ranks(
    timelines: Sequence[Timeline],
    *,
    starts: Sequence[float] = (),
    transfer: Callable[[Sequence[Kernel]], float] = transfer_time,
    collective: Callable[[Kernel], bool] = is_collective,
    groups: Groups = (),
) -> Ranks:
    """Return ranks simulated together, from the timeline of each rank alone.

    Args:
        timelines: of each rank alone; their lengths and waits count, not their times.
        starts: how much later than the first each rank begins, microseconds (default: together).
        transfer: microseconds of a collective from its kernel on each rank.
        collective: tells collectives from other kernels.
        groups: for each rank, its process groups' ranks by their names; a collective in none of
            them is one of all ranks.

    Raises:
        IrgraphError: there is no rank, or not a start for each; a collective has no time; ranks
            have different numbers of collectives, or different ones.
    """
    begins = starts or [0.0] * len(timelines)
    _check(timelines, begins)
    kinds = [(id(timeline), begin) for timeline, begin in zip(timelines, begins, strict=True)]
    firsts = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    if len(kinds) <= SHOWN or any(groups):
        return _simulated(timelines, begins, transfer, collective, (), groups)
    own = [timelines[rank] for rank in firsts], [begins[rank] for rank in firsts]
    found = _simulated(*own, transfer, collective, firsts)
    return found.spread([firsts.index(kinds.index(kind)) for kind in kinds], firsts)


def _simulated(
    timelines: Sequence[Timeline],
    begins: Sequence[float],
    transfer: Callable[[Sequence[Kernel]], float],
    collective: Callable[[Kernel], bool],
    names: Sequence[int] = (),
    groups: Groups = (),
) -> Ranks:
    """Simulate ranks one by one; ``names`` are their numbers."""
    joined = _Joined(
        timelines, _matched([t.columns for t in timelines], collective, groups), begins
    )
    joined.meet(transfer)
    try:
        order = np.array(in_order(joined.waits), np.int64)
    except ValueError:
        raise fail("ranks wait for each other in their collectives, for ever") from None
    tasks = joined.tasks(order)
    start, end = np.empty(len(order)), np.empty(len(order))
    start[order], end[order] = times = run(tasks)
    meetings = joined.meetings(start, end)
    ranges = [slice(a, b) for a, b in pairwise(joined.offsets)]
    ends = [float(end[mine].max(initial=0.0)) for mine in ranges]
    steps = tuple(max(0.0, at - begin) for at, begin in zip(ends, begins, strict=True))
    exposed = tuple(joined.exposed(rank, start, end) for rank in range(len(ranges)))
    timeline = joined.timeline(tasks, *times, names or range(len(ranges)))
    return Ranks(timeline, meetings, steps, exposed)


def _check(timelines: Sequence[Timeline], starts: Sequence[float]) -> None:
    if not timelines:
        raise fail("no ranks to simulate: give at least one timeline", exit_code=2)
    if len(starts) != len(timelines):
        raise fail(f"{len(timelines)} ranks have {len(starts)} starts: give one each", exit_code=2)
    for rank, timeline in enumerate(timelines):
        names = Counter(op.name for op in timeline.unknown if op.name.startswith(EXCHANGING))
        if names:
            listed = ", ".join(f"{name} x{count}" for name, count in names.items())
            hint = "predict it with ranks=N, and with fabric=NAME if its device has no curves"
            raise fail(f"rank {rank} has collectives without a time: {listed}", hint=hint)


def _matched(
    parts: Sequence[Intervals], collective: Callable[[Kernel], bool], groups: Groups
) -> list[dict[int, int]]:
    """Return, for each collective, its task on every rank of its group."""
    everyone = tuple(range(len(parts)))
    met: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for rank, part in enumerate(parts):
        known = np.array([collective(kernel) for kernel in part.kernels] or [False])
        tasks = part.tasks
        mine = tasks.having("kernel") & (tasks.kernel >= 0) & known[tasks.kernel]
        met.setdefault(everyone, {}).setdefault(rank, [])
        for task in np.flatnonzero(mine).tolist():
            group = part.kernels[tasks.kernel[task]].group
            members = groups[rank].get(group, everyone) if groups else everyone
            met.setdefault(members, {}).setdefault(rank, []).append(task)
    return [found for members, each in met.items() for found in _paired(members, each, parts)]


def _paired(
    members: Sequence[int], found: Mapping[int, list[int]], parts: Sequence[Intervals]
) -> Iterator[dict[int, int]]:
    """Yield the n-th collectives of a group's ranks together, which must be the same."""
    counts = {rank: len(found.get(rank, ())) for rank in members}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"rank {rank}: {count}" for rank, count in counts.items())
        raise fail(f"ranks have different numbers of collectives ({listed})")
    for number, tasks in enumerate(zip(*(found[rank] for rank in members), strict=True)):
        group = dict(zip(members, tasks, strict=True))
        names = [_name(parts[r].kernels[parts[r].tasks.kernel[t]]) for r, t in group.items()]
        other = next(
            (rank for rank, name in zip(members, names, strict=True) if name != names[0]), 0
        )
        if other:
            where = (
                f"collective {number} is {names[0]} on rank {members[0]} and "
                f"{names[members.index(other)]} on rank {other}"
            )
            raise fail(f"ranks do not match: {where}")
        yield group


def _name(kernel: Kernel) -> str:
    """Return the name that must match on all ranks: for traced kernels without arguments."""
    if kernel.family != COLLECTIVE:
        return re.split(r"[ (]", kernel.name)[0]
    return kernel.name.partition(",")[0] if kernel.name.startswith(UNEVEN) else kernel.name


@dataclass
class _Joined:
    """The tasks of all ranks, concatenated, with a start for each rank, and the collectives."""

    ranks: Sequence[Timeline]
    matched: Sequence[Mapping[int, int]]
    starts: Sequence[float]
    waits: list[list[int]] = field(init=False)
    arrivals: list[dict[int, list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parts = [t.columns for t in self.ranks]
        sizes = [len(part) for part in self.parts]
        self.offsets: list[int] = np.cumsum([0, *sizes]).tolist()
        self.groups = [
            {rank: task + self.offsets[rank] for rank, task in group.items()}
            for group in self.matched
        ]
        self.waits = [
            [other + offset for other in waits]
            for part, offset in zip(self.parts, self.offsets, strict=False)
            for waits in part.tasks.waited
        ]
        for rank, (first, end) in enumerate(pairwise(self.offsets)):
            begin = self.offsets[-1] + rank
            self.waits[first:end] = [waits or [begin] for waits in self.waits[first:end]]
        self.waits += [[] for _ in self.parts]
        lengths = [part.tasks.length for part in self.parts]
        self.length = np.concatenate([*lengths, self.starts, np.zeros(len(self.groups))])
        names = dict.fromkeys(c for part in self.parts for c in part.tasks.causes)
        self.causes = (*names, "start", "arrival")

    def meet(self, transfer: Callable[[Sequence[Kernel]], float]) -> None:
        """Let collectives start after a zero-length task that waits for all ranks."""
        for group in self.groups:
            time = transfer([self._kernel(*pair) for pair in group.items()])
            self.length[list(group.values())] = time
            self.arrivals.append({rank: self.waits[task] for rank, task in group.items()})
            meeting = len(self.waits)
            self.waits.append([other for waits in self.arrivals[-1].values() for other in waits])
            for task in group.values():
                self.waits[task] = [meeting]

    def _kernel(self, rank: int, task: int) -> Kernel:
        part = self.parts[rank]
        return part.kernels[int(part.tasks.kernel[task - self.offsets[rank]])]

    def meetings(self, start: Floats, end: Floats) -> tuple[Meeting, ...]:
        """Return the collectives with their waits."""
        found = []
        for group, arrivals in zip(self.groups, self.arrivals, strict=True):
            own = {rank: _latest(end, waits) for rank, waits in arrivals.items()}
            rank, task = next(iter(group.items()))
            begin, length = float(start[task]), float(self.length[task])
            waits = tuple(begin - own.get(rank, begin) for rank in range(len(self.parts)))
            name, last = self._kernel(rank, task).name, max(own, key=lambda rank: own[rank])
            found.append(Meeting(name, begin, length, waits, last))
        alike = all(len(group) == len(self.parts) for group in self.groups)
        return tuple(found if alike else sorted(found, key=lambda meeting: meeting.start))

    def exposed(self, rank: int, start: Floats, end: Floats) -> float:
        """Return the time in which a rank's device only communicates or waits to."""
        kernels = np.flatnonzero(self.parts[rank].tasks.having("kernel")) + self.offsets[rank]
        together = np.array([g[rank] for g in self.groups if rank in g], np.int64)
        work = np.setdiff1d(kernels, together)
        arrived = np.array([_latest(end, w[rank]) for w in self.arrivals if rank in w])
        begin = np.concatenate([start[work], arrived])
        return busy_time(begin, end[np.concatenate([work, together])]) - busy_time(
            start[work], end[work]
        )

    def tasks(self, order: Ints) -> Tasks:
        """Return all tasks as columns in topological order."""
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        waits = [self.waits[task] for task in order.tolist()]
        first = np.cumsum([0, *(len(others) for others in waits)])
        after = place[np.array([other for others in waits for other in others], np.int64)]
        resource = self._column([p.tasks.resource for p in self.parts], 0, self._sizes("resources"))
        columns = [
            self._column([getattr(p.tasks, name) for p in self.parts], -1, sizes)
            for name, sizes in (("op", self._sizes("ops")), ("kernel", self._sizes("kernels")))
        ]
        codes = [self._codes(p.tasks) for p in self.parts]
        known = len(self.causes)
        added = [[known - 2] * len(self.parts), [known - 1] * len(self.groups)]
        cause = np.concatenate([*codes, *(np.array(code, np.int64) for code in added)])
        alone = np.full(len(order), -1, np.int64)
        op, kernel = (column[order] for column in columns)
        length = self.length[order]
        return Tasks(
            length, first, after, resource[order], cause[order], op, kernel, alone, self.causes
        )

    def _sizes(self, what: str) -> list[int]:
        holders = self.ranks if what == "resources" else self.parts
        return [len(getattr(holder, what)) for holder in holders]

    def _column(self, columns: list[Ints], absent: int, sizes: list[int]) -> Ints:
        """Concatenate columns of indices, offset by the sizes of those before."""
        offsets = np.cumsum([0, *sizes]).tolist()
        moved = [
            np.where(column >= 0, column + offset, -1)
            for column, offset in zip(columns, offsets, strict=False)
        ]
        added = len(self.parts) + len(self.groups)
        return np.concatenate([*moved, np.full(added, absent, np.int64)])

    def _codes(self, tasks: Tasks) -> Ints:
        table: NDArray[np.int64] = np.array([self.causes.index(c) for c in tasks.causes], np.int64)
        return table[tasks.cause] if len(tasks) else tasks.cause

    def timeline(self, tasks: Tasks, start: Floats, end: Floats, names: Sequence[int]) -> Timeline:
        """Return the timeline of all ranks, by their numbers."""
        ops = [op for part in self.parts for op in part.ops]
        kernels = [kernel for part in self.parts for kernel in part.kernels]
        resources = tuple(
            Resource(r.kind, f"rank {rank} {r.name}")
            for rank, timeline in zip(names, self.ranks, strict=True)
            for r in timeline.resources
        )
        first = self.ranks[0]
        columns = Intervals(tasks, start, end, ops, kernels)
        return Timeline(columns, resources, first.device, first.host, first.accounting)


def _latest(end: Floats, waits: Sequence[int]) -> float:
    return max((float(end[task]) for task in waits), default=0.0)
