"""The chain of intervals that explains every microsecond of a step, and what is not on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from irgraph.schedule.tasks import Ints, longest_chain, spare
from irgraph.schedule.timeline import Interval, Intervals, Timeline


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
        return self._totals(lambda i: i.label)

    def by_op(self) -> dict[str, float]:
        """Return microseconds by operation's name, longest first."""
        return self._totals(lambda i: i.op.name if i.op else "")

    def by_module(self) -> dict[str, float]:
        """Return microseconds by module's path, ``(none)`` outside of any, longest first."""
        return self._totals(lambda i: (i.op.module if i.op else "") or "(none)")

    def _totals(self, key: Callable[[Interval], str]) -> dict[str, float]:
        return _totals((key(i), i.length) for i in self.intervals)


def critical_path(timeline: Timeline) -> CriticalPath:
    """Return the critical path of a timeline.

    Where two of those an interval waited for ended at the same time, the one of its own resource
    is taken. The lengths add up to the step time by construction.
    """
    columns = timeline.columns
    chain = longest_chain(columns.tasks, columns.end)
    chain = chain[columns.end[chain] > columns.start[chain]]
    intervals = timeline.intervals
    found = tuple(intervals[int(at)] for at in chain)
    return CriticalPath(found, timeline.step_time, _op_slack(columns, chain))


def slacks(timeline: Timeline) -> list[float]:
    """Return, for each interval, how many microseconds later it could end (total float).

    An interval may end no later than the latest start of any that waits for it, nor than the
    step; its latest start is that less its length.
    """
    columns = timeline.columns
    later: list[float] = spare(columns.tasks, columns.end, columns.end - columns.start).tolist()
    return later


def _op_slack(columns: Intervals, chain: Ints) -> dict[int, float]:
    """Return the least slack of each operation's intervals, by its identity."""
    tasks = columns.tasks
    later = spare(tasks, columns.end, columns.end - columns.start)
    least = np.full(len(columns.ops) + 1, np.inf)
    np.minimum.at(least, tasks.op, later)
    least[tasks.op[chain]] = 0.0
    found: dict[int, float] = {}
    for op, value in zip(columns.ops, least.tolist(), strict=False):
        if value < math.inf:
            found[id(op)] = min(value, found.get(id(op), math.inf))
    return found


def _totals(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for key, length in pairs:
        sums[key] = sums.get(key, 0.0) + length
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
