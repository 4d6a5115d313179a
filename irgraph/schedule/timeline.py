"""What happened when: intervals of host threads and device streams, each with what it waited for.

Every interval starts exactly when the last of the intervals it waited for ended, and those that
waited for nothing start at zero. So the chain of the last of each, from the end of the step back
to zero, has no holes: its lengths add up to the step time (``irgraph.schedule.critical_path``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np

from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.schedule.tasks import Floats, TaskBuilder, Tasks

CAUSES = {
    "T1": "between two top-level operations",
    "T2": "from an operation's start to its first launch",
    "T3": "from an operation's last launch to its end",
    "T4": "in the driver, for one launch",
    "T5": "between two launches, or all of an operation that launches nothing",
    "latency": "from the end of a launch to the start of its kernel on an idle device",
    "gap": "between two kernels of a busy stream",
    "kernel": "work of the device",
    "sync": "from the end of the awaited work to the host's return",
    "event": "none: work of a stream that has to wait for that of another",
    "start": "until a rank begins its step",
    "arrival": "none: a rank has come to a collective",
}
"""What an interval may be spent on (T1-T5: section III-C of the paper)."""

IDLE_CAUSES = frozenset({"latency", "gap"})
"""Causes that lie on a stream but are no work of the device."""


class Interval(NamedTuple):
    """A stretch of time of one resource, in microseconds from the start of the step.

    Attributes:
        resource: index into ``Timeline.resources``.
        cause: a key of ``CAUSES``.
        start, end: microseconds.
        after: positions of the intervals it waited for; it starts when the last of them ends.
        op: on whose behalf; ``None`` for none.
        kernel: what ran, or what was launched.
    """

    resource: int
    cause: str
    start: float
    end: float
    after: tuple[int, ...]
    op: Op | None = None
    kernel: Kernel | None = None

    @property
    def length(self) -> float:
        """Microseconds from start to end."""
        return self.end - self.start

    @property
    def label(self) -> str:
        """The cause, with the family where it is a kernel: ``T2``, ``kernel gemm``."""
        if self.cause == "kernel" and self.kernel is not None:
            return f"kernel {self.kernel.family}"
        return self.cause


class Resource(NamedTuple):
    """A host thread (``kind`` is ``host``) or a device's stream (``kind`` is the device)."""

    kind: str
    name: str

    def __str__(self) -> str:
        """Return both, as in ``host main`` or ``gpu0 default``."""
        return f"{self.kind} {self.name}"


class Intervals(Sequence[Interval]):
    """Intervals kept as columns; an ``Interval`` is made where one is looked at.

    Attributes:
        tasks: lengths and waits; with shared resources an interval may be longer than its task.
        start, end: microseconds, ``float64[n]``.
        ops, kernels: what the tasks' indices refer to.
    """

    def __init__(
        self,
        tasks: Tasks,
        start: Floats,
        end: Floats,
        ops: Sequence[Op] = (),
        kernels: Sequence[Kernel] = (),
    ) -> None:
        self.tasks = tasks
        self.start = start
        self.end = end
        self.ops = ops
        self.kernels = kernels

    @classmethod
    def of(cls, intervals: Sequence[Interval]) -> Intervals:
        """Return intervals as columns."""
        if isinstance(intervals, cls):
            return intervals
        builder = TaskBuilder()
        ops: dict[int, tuple[int, Op]] = {}
        kernels: dict[int, tuple[int, Kernel]] = {}
        for i in intervals:
            op = -1 if i.op is None else ops.setdefault(id(i.op), (len(ops), i.op))[0]
            known = (len(kernels), i.kernel) if i.kernel is not None else None
            kernel = -1 if known is None else kernels.setdefault(id(i.kernel), known)[0]
            builder.add(
                i.resource,
                i.cause,
                i.end - i.start,
                op=op,
                kernel=kernel,
                waits=i.after,
                ordered=False,
            )
        return cls(
            builder.tasks(),
            np.array([i.start for i in intervals], np.float64),
            np.array([i.end for i in intervals], np.float64),
            [op for _, op in ops.values()],
            [kernel for _, kernel in kernels.values()],
        )

    def __len__(self) -> int:
        """Return the number of intervals."""
        return len(self.tasks)

    @overload
    def __getitem__(self, at: int) -> Interval: ...

    @overload
    def __getitem__(self, at: slice) -> list[Interval]: ...

    def __getitem__(self, at: int | slice) -> Interval | list[Interval]:
        """Return one interval, or those of a slice."""
        if isinstance(at, slice):
            return [self._interval(position) for position in range(len(self))[at]]
        return self._interval(range(len(self))[at])

    def __iter__(self) -> Iterator[Interval]:
        """Yield every interval in order."""
        tasks = self.tasks
        ops = [*self.ops, None]
        kernels = [*self.kernels, None]
        columns = (tasks.resource, tasks.cause, self.start, self.end, tasks.op, tasks.kernel)
        rows = zip(*(column.tolist() for column in columns), tasks.waited, strict=True)
        for resource, cause, start, end, op, kernel, waits in rows:
            found = (tuple(waits), ops[op], kernels[kernel])
            yield Interval(resource, tasks.causes[cause], start, end, *found)

    def _interval(self, at: int) -> Interval:
        tasks = self.tasks
        op, kernel = int(tasks.op[at]), int(tasks.kernel[at])
        return Interval(
            int(tasks.resource[at]),
            tasks.causes[tasks.cause[at]],
            float(self.start[at]),
            float(self.end[at]),
            tuple(tasks.waits(at).tolist()),
            self.ops[op] if op >= 0 else None,
            self.kernels[kernel] if kernel >= 0 else None,
        )


@dataclass(frozen=True)
class Timeline:
    """One simulated step.

    Attributes:
        intervals: in an order in which each comes after those it waited for.
        resources: the host threads and device streams.
        device, host, accounting: names of what it was computed from.
        levels: how many operations found their overheads at each level of the host table.
        unknown: leaves whose device work no cost model knows: a floor stands for it.
    """

    intervals: Sequence[Interval]
    resources: tuple[Resource, ...]
    device: str = ""
    host: str = ""
    accounting: str = ""
    levels: Mapping[str, int] = field(default_factory=dict)
    unknown: tuple[Op, ...] = ()

    @cached_property
    def columns(self) -> Intervals:
        """The intervals as columns of numbers."""
        return Intervals.of(self.intervals)

    @cached_property
    def step_time(self) -> float:
        """Microseconds from the start to the end of the last interval."""
        return float(self.columns.end.max(initial=0.0))

    @cached_property
    def active_time(self) -> float:
        """Microseconds in which at least one stream of a device works."""
        work = self.columns.tasks.having("kernel")
        return busy_time(self.columns.start[work], self.columns.end[work])

    @property
    def idle_time(self) -> float:
        """Microseconds of the step in which no stream works."""
        return self.step_time - self.active_time

    @property
    def host_time(self) -> float:
        """Microseconds at which the last host thread is done."""
        hosts = [number for number, r in enumerate(self.resources) if r.kind == "host"]
        columns = self.columns
        return float(columns.end[np.isin(columns.tasks.resource, hosts)].max(initial=0.0))

    @property
    def waiting_time(self) -> float:
        """Microseconds that host threads wait for the device to finish awaited work."""
        columns = self.columns
        found = np.flatnonzero(columns.tasks.having("sync"))
        return sum(float(columns.start[at]) - self._free(int(at)) for at in found)

    def on_host(self, interval: Interval) -> bool:
        """Tell whether an interval belongs to a host thread."""
        return self.resources[interval.resource].kind == "host"

    def ready(self, interval: Interval) -> float:
        """Return when the interval's own resource was free for it, in microseconds."""
        return self._latest(interval.after, interval.resource)

    def _free(self, at: int) -> float:
        tasks = self.columns.tasks
        return self._latest(tasks.waits(at).tolist(), int(tasks.resource[at]))

    def _latest(self, waits: Sequence[int], resource: int) -> float:
        columns = self.columns
        own = [p for p in waits if columns.tasks.resource[p] == resource]
        return max((float(columns.end[p]) for p in own), default=0.0)


def busy_time(start: Floats, end: Floats) -> float:
    """Return the summed length of the union of stretches, in their unit."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    before = np.maximum.accumulate(np.concatenate([[-np.inf], end[:-1]])) if len(end) else end
    return float(np.maximum(end - np.maximum(start, before), 0.0).sum())


def _merged(stretches: Iterator[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join stretches that touch or overlap."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(stretches):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


class Recorder:
    """Builds a timeline, one interval at a time, on any number of threads and streams."""

    def __init__(self) -> None:
        self.intervals: list[Interval] = []
        self._resources: dict[Resource, int] = {}
        self._last: list[int] = []

    def resource(self, kind: str, name: str) -> int:
        """Return the index of a resource, a new one if there is none."""
        key = Resource(kind, name)
        if key not in self._resources:
            self._resources[key] = len(self._resources)
            self._last.append(-1)
        return self._resources[key]

    def last(self, resource: int) -> int:
        """Return the position of the last interval of a resource, -1 if it has none."""
        return self._last[resource]

    def now(self, resource: int) -> float:
        """Return when the last interval of a resource ended, in microseconds."""
        last = self._last[resource]
        return self.intervals[last].end if last >= 0 else 0.0

    def add(
        self,
        resource: int,
        cause: str,
        length: float,
        op: Op | None = None,
        kernel: Kernel | None = None,
        waits: tuple[int, ...] = (),
        ordered: bool = True,
    ) -> int:
        """Add an interval behind its resource's last one and those in ``waits``.

        Returns its position. ``length`` is in microseconds. One that is not ``ordered`` may
        overlap others of its resource: it starts behind ``waits`` alone, and none starts behind it
        unless it says so.
        """
        position = len(self.intervals)
        after = waits
        if ordered:
            last = self._last[resource]
            after = (last, *waits) if last >= 0 else waits
            self._last[resource] = position
        start = max([self.intervals[p].end for p in after], default=0.0)
        self.intervals.append(Interval(resource, cause, start, start + length, after, op, kernel))
        return position

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The resources so far, in order of their indices."""
        return tuple(self._resources)
