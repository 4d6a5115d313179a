"""Several ranks simulated together: a collective starts when the last rank arrives.

Every rank's schedule retains its tasks and waits; the n-th collectives of all ranks are assumed to
be the same. A rank's time in a collective is split into waiting for the others and the transfer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from irgraph.diagnostics import fail
from irgraph.ir.cost import COLLECTIVE, Kernel
from irgraph.ir.ranks import EXCHANGE_PREFIXES
from irgraph.schedule.joint_tasks import (
    TRANSFER,
    WAIT,
    WORK,
    Groups,
    JointTasks,
    Meeting,
    RankTimelines,
    match_collectives,
)
from irgraph.schedule.rank_classes import kinds_of, parts_of
from irgraph.schedule.tasks import Floats, Ints, Tasks, last_ends, run, topological_order
from irgraph.schedule.timeline import Timeline

MAX_SEPARATE_RANKS = 64
"""Maximum number of ranks that are simulated separately. Of more, equal ranks are simulated once:
they meet ranks of the same kinds in every collective, so all of them do the same at the same times.
"""


def is_collective(kernel: Kernel) -> bool:
    """Return whether a kernel exchanges data: by its family, or by NCCL's names in a trace."""
    return kernel.family == COLLECTIVE or kernel.name.startswith(("nccl", "ncclKernel"))


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks that were simulated together. Times in microseconds.

    Attributes:
        timeline: of all ranks, or of one of each kind if there are many, on one clock; resources
            are named ``rank 0 main`` and so on.
        meetings: the collectives in the order of the first rank; if there are many ranks, one
            for all groups of the same name whose ranks are of the same kinds.
        steps: from each rank's start to the end of all its work.
        shares: time of each activity of a rank's device; they add up to its step: its own ``work``;
            without any, ``transfer`` and then ``wait``, each for all ranks or for a process group
            (``wait tp``); ``idle`` otherwise, such as the bubble of a pipeline.
    """

    timeline: Timeline
    meetings: tuple[Meeting, ...]
    steps: tuple[float, ...]
    shares: tuple[Mapping[str, float], ...]

    def spread(self, kinds: Sequence[int], firsts: Sequence[int]) -> Ranks:
        """Return all ranks, each represented by one of the present ranks.

        Args:
            kinds: by rank, the position of the one that represents it.
            firsts: by position, the first rank that it represents.
        """
        meetings = (
            Meeting(m.name, m.start, m.transfer, tuple(m.waits[k] for k in kinds), firsts[m.last])
            for m in self.meetings
        )
        steps = tuple(self.steps[k] for k in kinds)
        return Ranks(self.timeline, tuple(meetings), steps, tuple(self.shares[k] for k in kinds))

    @property
    def exposed(self) -> tuple[float, ...]:
        """Time in which each rank's device only communicates or waits for ranks."""
        kinds = (TRANSFER, WAIT)
        return tuple(
            sum(time for activity, time in share.items() if activity.startswith(kinds))
            for share in self.shares
        )

    @property
    def in_pairs(self) -> bool:
        """Whether ranks exchange data in pairs, as stages of a pipeline do."""
        return _in_pairs(self.timeline)

    @property
    def bubble(self) -> float:
        """Share of the step in which a rank's device neither works nor transfers, their mean."""
        work_time = sum(
            share
            for shares in self.shares
            for activity, share in shares.items()
            if activity.startswith((WORK, TRANSFER))
        )
        total_time = len(self.shares) * self.step_time
        return 1.0 - work_time / total_time if total_time else 0.0

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
        """The rank that others wait for longest, counting the collectives where it arrives last."""
        waiting_by_rank: Counter[int] = Counter()
        for meeting in self.meetings:
            waiting_by_rank[meeting.last] += round(1000 * sum(meeting.waits))
        return (
            waiting_by_rank.most_common(1)[0][0] if waiting_by_rank else int(np.argmax(self.steps))
        )


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

    Measured times contain waiting: their minimum over ranks counts. Modelled times contain none:
    their maximum counts, and measured times of other ranks are then ignored.
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
        collective: returns whether a kernel is a collective.
        groups: for each rank, its process groups' ranks by their names; a collective in none of
            them is one of all ranks.

    Raises:
        IrgraphError: there is no rank, or not a start for each; a collective has no time; ranks
            have different numbers of collectives, or different ones.
    """
    start_times = starts or [0.0] * len(timelines)
    _check(timelines, start_times)
    rank_timelines = RankTimelines(timelines, range(len(timelines)), groups if any(groups) else ())
    kinds = None
    if len(timelines) > MAX_SEPARATE_RANKS and not any(map(_in_pairs, timelines)):
        kinds = kinds_of(timelines, start_times, rank_timelines.groups)
    if kinds is None:
        return _simulate_each(rank_timelines, start_times, transfer, collective)
    firsts = [kinds.index(kind) for kind in range(max(kinds) + 1)]
    parts = parts_of(timelines, kinds, firsts, rank_timelines.groups)
    class_ranks = _simulate_each(
        parts, [start_times[rank] for rank in firsts], transfer, collective
    )
    return class_ranks.spread(kinds, firsts)


def _in_pairs(timeline: Timeline) -> bool:
    """Return whether a rank exchanges data in pairs, which differ between ranks of a kind."""
    return any(kernel.peer for kernel in timeline.columns.kernels)


def draw_step_times(
    timelines: Sequence[Timeline],
    starts: Floats,
    *,
    transfer: Callable[[Sequence[Kernel]], float] = transfer_time,
    collective: Callable[[Kernel], bool] = is_collective,
    groups: Groups = (),
) -> Floats:
    """Return the time of the step under many draws of the ranks' start times, ``float64[draws]``.

    Args:
        timelines: of each rank alone.
        starts: microseconds at which each rank begins, ``float64[ranks, draws]``.
        transfer: as of ``simulate_ranks``, which raises the same.
        collective: as of ``simulate_ranks``.
        groups: as of ``simulate_ranks``.

    Every step lasts from time 0 to the end of the last rank's work.
    """
    _check(timelines, starts[:, 0].tolist() if starts.size else [])
    parts = RankTimelines(timelines, range(len(timelines)), groups if any(groups) else ())
    joint, _, tasks = _join_ranks(parts, [0.0] * len(timelines), transfer, collective)
    rows = dict(zip(joint.start_positions(tasks), starts, strict=True))
    base_lengths = tasks.length.tolist()
    lengths = (rows.get(task, time) for task, time in enumerate(base_lengths))
    return last_ends(tasks, lengths, starts.shape[1])


def _join_ranks(
    parts: RankTimelines,
    start_times: Sequence[float],
    transfer: Callable[[Sequence[Kernel]], float],
    collective: Callable[[Kernel], bool],
) -> tuple[JointTasks, Ints, Tasks]:
    """Return the joint tasks of ranks, a topological order of them, and the tasks in that order."""
    joint = JointTasks(parts.timelines, match_collectives(parts, collective), start_times)
    joint.link_collectives(transfer)
    try:
        order = np.array(topological_order(joint.waits), np.int64)
    except ValueError:
        raise fail("ranks deadlock: they wait for each other in their collectives") from None
    return joint, order, joint.tasks(order)


def _simulate_each(
    parts: RankTimelines,
    start_times: Sequence[float],
    transfer: Callable[[Sequence[Kernel]], float],
    collective: Callable[[Kernel], bool],
) -> Ranks:
    """Return ranks that are simulated separately."""
    joint, order, tasks = _join_ranks(parts, start_times, transfer, collective)
    start, end = np.empty(len(order)), np.empty(len(order))
    start[order], end[order] = times = run(tasks)
    ranges = [slice(a, b) for a, b in pairwise(joint.offsets)]
    ends = [float(end[span].max(initial=0.0)) for span in ranges]
    steps = tuple(
        max(0.0, end_time - start_time)
        for end_time, start_time in zip(ends, start_times, strict=True)
    )
    shares = tuple(joint.shares(rank, start, end) for rank in range(len(ranges)))
    timeline = joint.timeline(tasks, *times, parts.names)
    return Ranks(timeline, joint.meetings(start, end), steps, shares)


def _check(timelines: Sequence[Timeline], starts: Sequence[float]) -> None:
    if not timelines:
        raise fail("no ranks to simulate: give at least one timeline", exit_code=2)
    if len(starts) != len(timelines):
        raise fail(f"{len(timelines)} ranks have {len(starts)} starts: give one each", exit_code=2)
    invalid_start = next(
        (start for start in starts if not (math.isfinite(start) and start >= 0)), None
    )
    if invalid_start is not None:
        raise fail(f"starts: give microseconds from 0, not {invalid_start!r}", exit_code=2)
    for rank, timeline in enumerate(timelines):
        names = Counter(op.name for op in timeline.unknown if op.name.startswith(EXCHANGE_PREFIXES))
        if names:
            listing = ", ".join(f"{name} x{count}" for name, count in names.items())
            hint = "predict it with ranks=N, and with fabric=NAME if its device has no curves"
            raise fail(f"rank {rank} has collectives without a time: {listing}", hint=hint)
