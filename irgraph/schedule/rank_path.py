"""The critical path of several ranks: one chain that hops between them and adds up to the step."""

from __future__ import annotations

import re
from itertools import groupby
from math import fsum

from msgspec import Struct

from irgraph.schedule.critical_path import critical_path
from irgraph.schedule.joint_tasks import TRANSFER
from irgraph.schedule.ranks import Ranks, is_collective

_RANK = re.compile(r"rank (\d+) ")


class PathSegment(Struct, frozen=True):
    """Part of the path on one rank with one activity. Times in microseconds.

    Attributes:
        rank: the rank; of many, the first of its kind.
        activity: ``transfer`` with its process group's name if it has one, ``kernel`` with its
            family, or the cause of an interval of the host.
        start: its start.
        time: its duration.
    """

    rank: int
    activity: str
    start: float
    time: float


def rank_path(ranks: Ranks) -> list[PathSegment]:
    """Return the critical path of ranks in order of time; its times add up to the step's."""
    timeline = ranks.timeline
    path = critical_path(timeline)
    columns, tasks = path.columns, path.columns.tasks
    numbers = [int(match[1]) if (match := _RANK.search(str(r))) else 0 for r in timeline.resources]
    names = [
        f"{TRANSFER} {k.group}".rstrip() if is_collective(k) else f"kernel {k.family}"
        for k in columns.kernels
    ]
    running = tasks.has_cause("kernel") & (tasks.kernel >= 0)
    segments = []
    for position in path.chain.tolist():
        activity = (
            names[tasks.kernel[position]]
            if running[position]
            else tasks.causes[tasks.cause[position]]
        )
        start, end = float(columns.start[position]), float(columns.end[position])
        segments.append(
            PathSegment(numbers[tasks.resource[position]], activity, start, end - start)
        )
    return [_merge_segments(list(same)) for _, same in groupby(segments, key=_segment_key)]


def _segment_key(segment: PathSegment) -> tuple[int, str]:
    return segment.rank, segment.activity


def _merge_segments(segments: list[PathSegment]) -> PathSegment:
    first = segments[0]
    return PathSegment(first.rank, first.activity, first.start, fsum(s.time for s in segments))


def hops(path: list[PathSegment]) -> int:
    """Return the number of times that a path moves from one rank to another."""
    ranks = [rank for rank, _ in groupby(path, lambda segment: segment.rank)]
    return max(0, len(ranks) - 1)


def times_by_activity(path: list[PathSegment]) -> dict[str, tuple[float, list[int]]]:
    """Return microseconds and ranks by activity on a path, the longest first."""
    times: dict[str, float] = {}
    ranks: dict[str, set[int]] = {}
    for segment in path:
        times[segment.activity] = times.get(segment.activity, 0.0) + segment.time
        ranks.setdefault(segment.activity, set()).add(segment.rank)
    return {w: (t, sorted(ranks[w])) for w, t in sorted(times.items(), key=lambda item: -item[1])}
