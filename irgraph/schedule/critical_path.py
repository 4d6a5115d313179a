"""The critical path of a step: the chain of intervals that adds up to its time; and slack."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np
from msgspec import Struct

from irgraph.ir.op import Op
from irgraph.schedule.tasks import Floats, Ints, longest_chain, total_float
from irgraph.schedule.timeline import Interval, Intervals, Timeline


class CriticalPath(Struct, frozen=True, dict=True):
    """The chain from the start of a step to its end, each interval starting where one ended.

    Attributes:
        columns: all intervals of the step.
        chain: positions of those on the path in order of time, without those of zero length.
        step_time: of the timeline, microseconds; equal to ``length`` up to rounding.
    """

    columns: Intervals
    chain: Ints
    step_time: float

    @cached_property
    def intervals(self) -> tuple[Interval, ...]:
        """The intervals on the path in order of time."""
        return tuple(self.columns[position] for position in self.chain.tolist())

    @cached_property
    def slack(self) -> Mapping[Op, float]:
        """How much later each operation could end without delaying the step's end.

        Microseconds for the operation as a whole; zero for operations on the path.
        """
        return _op_slack(self.columns, self.chain)

    @property
    def length(self) -> float:
        """Summed length of the intervals, microseconds."""
        return math.fsum(self._lengths.tolist())

    @property
    def _lengths(self) -> Floats:
        return (self.columns.end - self.columns.start)[self.chain]

    def by_cause(self) -> dict[str, float]:
        """Return microseconds by cause, kernels by family, longest first."""
        tasks = self.columns.tasks
        families = [kernel.family for kernel in self.columns.kernels]
        names = sorted(set(families))
        family_codes = np.array([names.index(family) for family in families] or [0], np.int64)
        kernel = tasks.has_cause("kernel")[self.chain] & (tasks.kernel[self.chain] >= 0)
        family = np.where(kernel, family_codes[tasks.kernel[self.chain]], -1)
        labels = [*tasks.causes, *(f"kernel {name}" for name in names)]
        codes = np.where(family >= 0, len(tasks.causes) + family, tasks.cause[self.chain])
        return self._times_by_code(codes, labels)

    def by_op(self) -> dict[str, float]:
        """Return microseconds by operation's name, longest first."""
        return self._times_by_label([op.name for op in self.columns.ops], "")

    def by_module(self) -> dict[str, float]:
        """Return microseconds by module's path, ``(none)`` outside of any, longest first."""
        return self._times_by_label([op.module or "(none)" for op in self.columns.ops], "(none)")

    def _times_by_label(self, names: list[str], absent: str) -> dict[str, float]:
        codes = self.columns.tasks.op[self.chain]
        return self._times_by_code(np.where(codes >= 0, codes, len(names)), [*names, absent])

    def _times_by_code(self, codes: Ints, labels: list[str]) -> dict[str, float]:
        """Sum lengths by label; several codes may have the same."""
        sums: dict[str, float] = {}
        times = np.bincount(codes, self._lengths, minlength=len(labels))
        for code in sorted(set(codes.tolist())):
            sums[labels[code]] = sums.get(labels[code], 0.0) + float(times[code])
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


def critical_path(timeline: Timeline) -> CriticalPath:
    """Return the critical path of a timeline.

    If an interval waited for two that ended at the same time, the one of its own resource is on the
    path. The lengths add up to the step time by construction.
    """
    columns = timeline.columns
    chain = longest_chain(columns.tasks, columns.end)
    chain = chain[columns.end[chain] > columns.start[chain]]
    return CriticalPath(columns, chain, timeline.step_time)


def _op_slack(columns: Intervals, chain: Ints) -> dict[Op, float]:
    """Return the minimum slack of each operation's intervals in microseconds."""
    tasks = columns.tasks
    slack = total_float(tasks, columns.end, columns.end - columns.start)
    min_slack = np.full(len(columns.ops) + 1, np.inf)
    np.minimum.at(min_slack, tasks.op, slack)
    min_slack[tasks.op[chain]] = 0.0
    slack_by_op: dict[Op, float] = {}
    for op, op_slack in zip(columns.ops, min_slack.tolist(), strict=False):
        if op_slack < math.inf:
            slack_by_op[op] = min(op_slack, slack_by_op.get(op, math.inf))
    return slack_by_op
