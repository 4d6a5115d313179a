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
    """What the path spends on one rank without a break. Times in microseconds.

    Attributes:
        rank: the rank; of many, the first of its kind.
        what: ``transfer`` with its process group's name if it has one, ``kernel`` with its
            family, or the cause of an interval of the host.
        start: when it begins.
        time: how long it takes.
    """

    rank: int
    what: str
    start: float
    time: float


def rank_path(ranks: Ranks) -> list[PathSegment]:
    """Return the critical path of ranks in order of time; its times add up to the step's."""
    timeline = ranks.timeline
    path = critical_path(timeline)
    columns, tasks = path.columns, path.columns.tasks
    numbers = [int(named[1]) if (named := _RANK.search(str(r))) else 0 for r in timeline.resources]
    names = [
        f"{TRANSFER} {k.group}".rstrip() if is_collective(k) else f"kernel {k.family}"
        for k in columns.kernels
    ]
    running = tasks.having("kernel") & (tasks.kernel >= 0)
    found = []
    for at in path.chain.tolist():
        what = names[tasks.kernel[at]] if running[at] else tasks.causes[tasks.cause[at]]
        start, end = float(columns.start[at]), float(columns.end[at])
        found.append(PathSegment(numbers[tasks.resource[at]], what, start, end - start))
    return [_joined(list(same)) for _, same in groupby(found, key=_where)]


def _where(stretch: PathSegment) -> tuple[int, str]:
    return stretch.rank, stretch.what


def _joined(same: list[PathSegment]) -> PathSegment:
    first = same[0]
    return PathSegment(first.rank, first.what, first.start, fsum(s.time for s in same))


def hops(path: list[PathSegment]) -> int:
    """Return how often a path goes from one rank to another."""
    ranks = [rank for rank, _ in groupby(path, lambda stretch: stretch.rank)]
    return max(0, len(ranks) - 1)


def by_what(path: list[PathSegment]) -> dict[str, tuple[float, list[int]]]:
    """Return microseconds and ranks by what is on a path, the longest first."""
    times: dict[str, float] = {}
    ranks: dict[str, set[int]] = {}
    for stretch in path:
        times[stretch.what] = times.get(stretch.what, 0.0) + stretch.time
        ranks.setdefault(stretch.what, set()).add(stretch.rank)
    return {w: (t, sorted(ranks[w])) for w, t in sorted(times.items(), key=lambda item: -item[1])}
