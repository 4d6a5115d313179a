"""Tasks of several ranks as the tasks of one step, with joint collectives and start times."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from irgraph.diagnostics import fail
from irgraph.ir.cost import COLLECTIVE, Kernel
from irgraph.schedule.tasks import Floats, Ints, Tasks
from irgraph.schedule.timeline import Intervals, Resource, Timeline, busy_time

Groups: TypeAlias = Sequence[Mapping[str, tuple[int, ...]]]

UNEVEN = ("all_to_all",)
"""Collectives whose messages may differ in size between ranks."""

PAIR = "pair"
"""First part of the key of a sender and a receiver, instead of a group's name."""

WORK, WAIT, TRANSFER, IDLE = "work", "wait", "transfer", "idle"
"""Activities of a rank's device: see ``Ranks.shares``."""


class Meeting(Struct, frozen=True):
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


class RankTimelines(Struct, frozen=True):
    """Ranks that are simulated separately.

    Attributes:
        timelines: of each alone.
        names: their numbers.
        groups: for each, its process groups by their names, as positions in ``timelines``.
        kinds: whether each represents other ranks; then groups meet by their names.
    """

    timelines: Sequence[Timeline]
    names: Sequence[int]
    groups: Groups
    kinds: bool = False


def match_collectives(
    ranks: RankTimelines, collective: Callable[[Kernel], bool]
) -> list[tuple[str, dict[int, int]]]:
    """Return the name of the group of each collective, and its task by rank of the group."""
    rank_columns = [timeline.columns for timeline in ranks.timelines]
    all_ranks = tuple(range(len(rank_columns)))
    tasks_by_group: dict[tuple[str, tuple[int, ...]], dict[int, list[int]]] = {}
    names: dict[tuple[str, tuple[int, ...]], str] = {}
    for rank, columns in enumerate(rank_columns):
        is_matched = np.array([collective(kernel) for kernel in columns.kernels] or [False])
        tasks = columns.tasks
        collective_tasks = (
            tasks.has_cause("kernel") & (tasks.kernel >= 0) & is_matched[tasks.kernel]
        )
        tasks_by_group.setdefault(("", all_ranks), {}).setdefault(rank, [])
        for task in np.flatnonzero(collective_tasks).tolist():
            kernel = columns.kernels[tasks.kernel[task]]
            group = kernel.group
            members = ranks.groups[rank].get(group, ()) if ranks.groups else ()
            if kernel.peer:
                pair = _sender_and_receiver(kernel.peer, rank, members or all_ranks, ranks.names)
                names.setdefault((PAIR, pair), group)
                tasks_by_group.setdefault((PAIR, pair), {}).setdefault(rank, []).append(task)
                continue
            key = (group if members and ranks.kinds else "", members or all_ranks)
            names.setdefault(key, group if members else "")
            tasks_by_group.setdefault(key, {}).setdefault(rank, []).append(task)
    return [
        (names.get(key, ""), task_by_rank)
        for key, tasks_by_rank in tasks_by_group.items()
        for task_by_rank in _match_tasks(key[1], tasks_by_rank, rank_columns, ranks.names)
    ]


def _sender_and_receiver(
    peer: str, rank: int, members: Sequence[int], numbers: Sequence[int]
) -> tuple[int, int]:
    """Return the rank that sends and the rank that receives, of the group's ``members``."""
    direction, _, position = peer.partition(" ")
    if int(position) >= len(members):
        message = (
            f"rank {numbers[rank]} exchanges with rank {position} of a group of {len(members)}"
        )
        raise fail(message, hint="give a model for each rank, in order")
    other = members[int(position)]
    return (rank, other) if direction == "to" else (other, rank)


def _match_tasks(
    members: Sequence[int],
    tasks_by_rank: Mapping[int, list[int]],
    rank_columns: Sequence[Intervals],
    numbers: Sequence[int],
) -> Iterator[dict[int, int]]:
    """Yield the tasks of each collective by rank: the n-th of all ranks, which must be equal."""
    counts = {rank: len(tasks_by_rank.get(rank, ())) for rank in members}
    if len(set(counts.values())) > 1:
        listing = ", ".join(f"rank {numbers[rank]}: {count}" for rank, count in counts.items())
        raise fail(f"ranks have different numbers of collectives ({listing})")
    for number, tasks in enumerate(zip(*(tasks_by_rank[rank] for rank in members), strict=True)):
        group = dict(zip(members, tasks, strict=True))
        names = [
            _name(rank_columns[r].kernels[rank_columns[r].tasks.kernel[t]])
            for r, t in group.items()
        ]
        mismatch = next((index for index, name in enumerate(names) if name != names[0]), 0)
        if mismatch:
            difference = (
                f"collective {number} is {names[0]} on rank {numbers[members[0]]} and "
                f"{names[mismatch]} on rank {numbers[members[mismatch]]}"
            )
            raise fail(f"ranks do not match: {difference}")
        yield group


def _name(kernel: Kernel) -> str:
    """Return the name that must match on all ranks, for traced kernels without arguments."""
    if kernel.peer:
        return kernel.name.partition(", ")[2]  # what is sent and what is received are as large
    if kernel.family != COLLECTIVE:
        return re.split(r"[ (]", kernel.name)[0]
    return kernel.name.partition(",")[0] if kernel.name.startswith(UNEVEN) else kernel.name


@dataclass
class JointTasks:
    """The tasks of all ranks, concatenated, with a start for each rank, and the collectives."""

    ranks: Sequence[Timeline]
    collectives: Sequence[tuple[str, Mapping[int, int]]]
    starts: Sequence[float]
    waits: list[list[int]] = field(init=False)
    arrivals: list[dict[int, list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parts = [t.columns for t in self.ranks]
        sizes = [len(part) for part in self.parts]
        self.offsets: list[int] = np.cumsum([0, *sizes]).tolist()
        self.groups = [
            {rank: task + self.offsets[rank] for rank, task in group.items()}
            for _, group in self.collectives
        ]
        self.waits = [
            [other + offset for other in waits]
            for part, offset in zip(self.parts, self.offsets, strict=False)
            for waits in part.tasks.wait_lists
        ]
        for rank, (first, end) in enumerate(pairwise(self.offsets)):
            start_task = self.offsets[-1] + rank
            self.waits[first:end] = [waits or [start_task] for waits in self.waits[first:end]]
        self.waits += [[] for _ in self.parts]
        lengths = [part.tasks.length for part in self.parts]
        self.length = np.concatenate([*lengths, self.starts, np.zeros(len(self.groups))])
        names = dict.fromkeys(c for part in self.parts for c in part.tasks.causes)
        self.causes = (*names, "start", "arrival")

    def link_collectives(self, transfer: Callable[[Sequence[Kernel]], float]) -> None:
        """Add a task of zero length before each collective, which waits for all its ranks."""
        for group in self.groups:
            time = transfer([self._kernel(*pair) for pair in group.items()])
            self.length[list(group.values())] = time
            self.arrivals.append({rank: self.waits[task] for rank, task in group.items()})
            arrival = len(self.waits)
            self.waits.append([other for waits in self.arrivals[-1].values() for other in waits])
            for task in group.values():
                self.waits[task] = [arrival]

    def _kernel(self, rank: int, task: int) -> Kernel:
        part = self.parts[rank]
        return part.kernels[int(part.tasks.kernel[task - self.offsets[rank]])]

    def meetings(self, start: Floats, end: Floats) -> tuple[Meeting, ...]:
        """Return the collectives with their waits."""
        meetings = []
        for group, arrivals in zip(self.groups, self.arrivals, strict=True):
            arrival_by_rank = {rank: _latest(end, waits) for rank, waits in arrivals.items()}
            rank, task = next(iter(group.items()))
            start_time, length = float(start[task]), float(self.length[task])
            waits = tuple(
                start_time - arrival_by_rank.get(rank, start_time)
                for rank in range(len(self.parts))
            )
            name, last = (
                self._kernel(rank, task).name,
                max(arrival_by_rank, key=lambda rank: arrival_by_rank[rank]),
            )
            meetings.append(Meeting(name, start_time, length, waits, last))
        all_ranks_meet = all(len(group) == len(self.parts) for group in self.groups)
        return tuple(
            meetings if all_ranks_meet else sorted(meetings, key=lambda meeting: meeting.start)
        )

    def shares(self, rank: int, start: Floats, end: Floats) -> dict[str, float]:
        """Return the microseconds of each activity of a rank's device, from its start to its end.

        Of concurrent activities the first of these counts: its own work, transfers, waits.
        """
        kernels = np.flatnonzero(self.parts[rank].tasks.has_cause("kernel")) + self.offsets[rank]
        collective_tasks = np.array([g[rank] for g in self.groups if rank in g], np.int64)
        work = np.setdiff1d(kernels, collective_tasks)
        busy_starts, busy_ends = start[work], end[work]
        shares = {WORK: busy_time(busy_starts, busy_ends)}
        for activity in (TRANSFER, WAIT):
            for name, (first, last) in self._collective_spans(rank, activity, start, end).items():
                busy_before = busy_time(busy_starts, busy_ends)
                busy_starts, busy_ends = (
                    np.concatenate([busy_starts, first]),
                    np.concatenate([busy_ends, last]),
                )
                shares[f"{activity} {name}".rstrip()] = (
                    busy_time(busy_starts, busy_ends) - busy_before
                )
        rank_ends = end[self.offsets[rank] : self.offsets[rank + 1]]
        step = max(0.0, float(rank_ends.max(initial=0.0)) - self.starts[rank])
        shares[IDLE] = step - busy_time(busy_starts, busy_ends)
        return shares

    def _collective_spans(
        self, rank: int, activity: str, start: Floats, end: Floats
    ) -> dict[str, tuple[Floats, Floats]]:
        """Return the intervals of a rank's transfers, or of its waits for them, by group."""
        spans_by_group: dict[str, tuple[list[float], list[float]]] = {}
        for (name, _), group, arrivals in zip(
            self.collectives, self.groups, self.arrivals, strict=True
        ):
            if rank in group:
                transfer_start = float(start[group[rank]])
                first = transfer_start if activity == TRANSFER else _latest(end, arrivals[rank])
                last = float(end[group[rank]]) if activity == TRANSFER else transfer_start
                firsts, lasts = spans_by_group.setdefault(name, ([], []))
                firsts.append(first)
                lasts.append(last)
        return {name: (np.array(a), np.array(b)) for name, (a, b) in spans_by_group.items()}

    def tasks(self, order: Ints) -> Tasks:
        """Return all tasks as columns in topological order."""
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        waits = [self.waits[task] for task in order.tolist()]
        first = np.cumsum([0, *(len(task_waits) for task_waits in waits)])
        after = position[
            np.array([other for task_waits in waits for other in task_waits], np.int64)
        ]
        sizes = self._sizes("resources")
        resource = self._column([p.tasks.resource for p in self.parts], 0, sizes)
        resource[self.offsets[-1] : self.offsets[-1] + len(sizes)] = np.cumsum([0, *sizes[:-1]])
        columns = [
            self._column([getattr(p.tasks, name) for p in self.parts], -1, sizes)
            for name, sizes in (("op", self._sizes("ops")), ("kernel", self._sizes("kernels")))
        ]
        codes = [self._codes(p.tasks) for p in self.parts]
        cause_count = len(self.causes)
        added_causes = [[cause_count - 2] * len(self.parts), [cause_count - 1] * len(self.groups)]
        cause = np.concatenate([*codes, *(np.array(code, np.int64) for code in added_causes)])
        no_pool = np.full(len(order), -1, np.int64)
        op, kernel = (column[order] for column in columns)
        length = self.length[order]
        return Tasks(
            length, first, after, resource[order], cause[order], op, kernel, no_pool, self.causes
        )

    def start_positions(self, tasks: Tasks) -> list[int]:
        """Return the position of each rank's start among tasks in order."""
        return np.flatnonzero(tasks.has_cause("start")).tolist()

    def _sizes(self, attribute: str) -> list[int]:
        owners = self.ranks if attribute == "resources" else self.parts
        return [len(getattr(owner, attribute)) for owner in owners]

    def _column(self, columns: list[Ints], absent: int, sizes: list[int]) -> Ints:
        """Concatenate columns of indices, offset by the sizes of the ranks before."""
        offsets = np.cumsum([0, *sizes]).tolist()
        offset_columns = [
            np.where(column >= 0, column + offset, -1)
            for column, offset in zip(columns, offsets, strict=False)
        ]
        added_count = len(self.parts) + len(self.groups)
        return np.concatenate([*offset_columns, np.full(added_count, absent, np.int64)])

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
