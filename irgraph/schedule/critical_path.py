"""The chain of intervals that explains every microsecond of a step, and what is not on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from irgraph.ir.op import Op
from irgraph.schedule.timeline import Interval, Timeline


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The chain from the start of a step to its end, each interval starting where one ended.

    Attributes:
        intervals: in order of time, those without length left out.
        step_time: of the timeline, microseconds; equal to ``length`` up to rounding.
        slack: by ``id(op)``, how many microseconds later all of an operation could end without
            moving the end of the step; zero for operations on the path.
    """

    intervals: tuple[Interval, ...]
    step_time: float
    slack: Mapping[int, float]

    @property
    def length(self) -> float:
        """Summed length of the intervals, microseconds."""
        return math.fsum(i.length for i in self.intervals)

    def by_cause(self) -> dict[str, float]:
        """Return microseconds by cause, kernels by family, longest first."""
        return _totals((i.label, i.length) for i in self.intervals)

    def by_op(self) -> dict[str, float]:
        """Return microseconds by operation's name, longest first."""
        return _totals((i.op.name if i.op else "", i.length) for i in self.intervals)


def critical_path(timeline: Timeline) -> CriticalPath:
    """Return the critical path of a timeline.

    Where two of those an interval waited for ended at the same time, the one of its own resource
    is taken. The lengths add up to the step time by construction.
    """
    intervals = timeline.intervals
    chain: list[Interval] = []
    at = _latest(range(len(intervals)), intervals)
    while at >= 0:
        interval = intervals[at]
        if interval.end > interval.start:
            chain.append(interval)
        at = _latest(interval.after, intervals)
    chain.reverse()
    return CriticalPath(tuple(chain), timeline.step_time, _op_slack(timeline, chain))


def slacks(timeline: Timeline) -> list[float]:
    """Return, for each interval, how many microseconds later it could end (total float).

    An interval may end no later than the latest start of any that waits for it, nor than the
    step; its latest start is that less its length.
    """
    step = timeline.step_time
    latest = [step] * len(timeline.intervals)
    for at in range(len(latest) - 1, -1, -1):
        interval = timeline.intervals[at]
        start = latest[at] - (interval.end - interval.start)
        for earlier in interval.after:
            if start < latest[earlier]:
                latest[earlier] = start
    least = 1e-9 * step
    spare = (late - i.end for late, i in zip(latest, timeline.intervals, strict=True))
    return [s if s > least else 0.0 for s in spare]


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What the step would take if one operation were faster.

    Attributes:
        op: the operation.
        step_time: with all its times, on host and device, divided by the factor; microseconds.
        saved: the step's time less that, microseconds.
    """

    op: Op
    step_time: float
    saved: float


def sensitivity(timeline: Timeline, *, factor: float = 2.0, top: int = 10) -> list[Sensitivity]:
    """Return the operations whose being ``factor`` times faster would shorten the step most.

    Only operations on the critical path can; the ``top`` with the most time on it are tried, by
    running the timeline again with their lengths divided.
    """
    on_path: dict[int, tuple[Op, float]] = {}
    for interval in critical_path(timeline).intervals:
        if interval.op is not None:
            before = on_path.get(id(interval.op), (interval.op, 0.0))[1]
            on_path[id(interval.op)] = (interval.op, before + interval.length)
    most = sorted(on_path.values(), key=lambda pair: -pair[1])[:top]
    step = timeline.step_time
    tried = [(op, _step_with(timeline.intervals, op, 1.0 / factor)) for op, _ in most]
    found = [Sensitivity(op, time, step - time) for op, time in tried]
    return sorted(found, key=lambda s: s.step_time)


def _latest(positions: Iterable[int], intervals: Sequence[Interval]) -> int:
    """Return the position of the interval that ends last, the first of equals; -1 for none."""
    found, end = -1, -math.inf
    for at in positions:
        if intervals[at].end > end:
            found, end = at, intervals[at].end
    return found


def _op_slack(timeline: Timeline, chain: Iterable[Interval]) -> dict[int, float]:
    slack: dict[int, float] = {}
    for interval, spare in zip(timeline.intervals, slacks(timeline), strict=True):
        if interval.op is not None:
            key = id(interval.op)
            slack[key] = min(spare, slack.get(key, math.inf))
    for interval in chain:
        if interval.op is not None:
            slack[id(interval.op)] = 0.0
    return slack


def _step_with(intervals: Sequence[Interval], op: Op, scale: float) -> float:
    """Return the end of the step with an operation's lengths scaled."""
    ends: list[float] = []
    for interval in intervals:
        length = interval.length * (scale if interval.op is op else 1.0)
        ends.append(max((ends[p] for p in interval.after), default=0.0) + length)
    return max(ends, default=0.0)


def _totals(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for key, length in pairs:
        sums[key] = sums.get(key, 0.0) + length
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
