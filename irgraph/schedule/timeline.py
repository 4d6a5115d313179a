"""Timelines: intervals of host threads and device streams, each with its waits.

Every interval starts exactly when the last of the intervals it waited for ended, and an interval
without waits starts at zero. So the chain of the last wait of each, from the end of the step back
to zero, has no gaps: its lengths add up to the step time (``irgraph.schedule.critical_path``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.schedule.intervals import Interval, Intervals
from irgraph.schedule.tasks import Floats, TaskBuilder, run

T = TypeVar("T")

__all__ = [
    "Interval",
    "Intervals",
    "Recorder",
    "Resource",
    "Timeline",
    "busy_time",
]


class Resource(NamedTuple):
    """A host thread or a device's stream.

    Attributes:
        kind: ``host``, or the device's name.
        name: of the thread or the stream.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        """Return both, as in ``host main`` or ``gpu0 default``."""
        return f"{self.kind} {self.name}"


class Timeline(Struct, frozen=True, dict=True):
    """One simulated step.

    Attributes:
        intervals: in an order in which each comes after those it waited for.
        resources: the host threads and device streams.
        device, host, accounting: names of the inputs that it was computed from.
        levels: number of operations with overheads from each level of the host table.
        unknown: leaves without a cost model, priced by a lower bound.
    """

    intervals: Intervals | tuple[()]
    resources: tuple[Resource, ...]
    device: str = ""
    host: str = ""
    accounting: str = ""
    levels: Mapping[str, int] = field(default_factory=dict)
    unknown: tuple[Op, ...] = ()

    @cached_property
    def columns(self) -> Intervals:
        """The intervals as columns of numbers."""
        return self.intervals or Recorder().intervals()

    @cached_property
    def step_time(self) -> float:
        """Microseconds from the start to the end of the last interval."""
        return float(self.columns.end.max(initial=0.0))

    @cached_property
    def active_time(self) -> float:
        """Microseconds in which at least one stream of a device works."""
        work = self.columns.tasks.has_cause("kernel")
        return busy_time(self.columns.start[work], self.columns.end[work])

    @property
    def idle_time(self) -> float:
        """Microseconds of the step in which no stream works."""
        return self.step_time - self.active_time

    @property
    def host_time(self) -> float:
        """End of the last host thread, microseconds."""
        hosts = [number for number, r in enumerate(self.resources) if r.kind == "host"]
        columns = self.columns
        return float(columns.end[np.isin(columns.tasks.resource, hosts)].max(initial=0.0))

    @property
    def waiting_time(self) -> float:
        """Microseconds that host threads wait for the device to finish awaited work."""
        columns = self.columns
        sync_tasks = np.flatnonzero(columns.tasks.has_cause("sync"))
        return sum(float(columns.start[task]) - self._free_time(int(task)) for task in sync_tasks)

    def on_host(self, interval: Interval) -> bool:
        """Return whether an interval belongs to a host thread."""
        return self.resources[interval.resource].kind == "host"

    def ready(self, interval: Interval) -> float:
        """Return the time at which the interval's own resource became free, in microseconds."""
        return self._latest_end(interval.after, interval.resource)

    def _free_time(self, task: int) -> float:
        tasks = self.columns.tasks
        return self._latest_end(tasks.waits(task).tolist(), int(tasks.resource[task]))

    def _latest_end(self, waits: Sequence[int], resource: int) -> float:
        columns = self.columns
        same_resource = [p for p in waits if columns.tasks.resource[p] == resource]
        return max((float(columns.end[p]) for p in same_resource), default=0.0)


def busy_time(start: Floats, end: Floats) -> float:
    """Return the length of the union of intervals, in their unit."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    latest_end = np.maximum.accumulate(np.concatenate([[-np.inf], end[:-1]])) if len(end) else end
    return float(np.maximum(end - np.maximum(start, latest_end), 0.0).sum())


class Recorder:
    """Builds the intervals of a step, one at a time, on any number of threads and streams."""

    def __init__(self) -> None:
        self.resources: dict[Resource, int] = {}
        self._tasks = TaskBuilder()
        self._ops: list[Op] = []
        self._kernels: list[Kernel] = []
        self._numbers: dict[int, int] = {}

    def resource(self, kind: str, name: str) -> int:
        """Return the index of a resource, a new one if there is none."""
        return self.resources.setdefault(Resource(kind, name), len(self.resources))

    def last(self, resource: int) -> int:
        """Return the position of the last interval of a resource, -1 if it has none."""
        return self._tasks.last(resource)

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
        """Add an interval of ``length`` microseconds, as ``TaskBuilder.add`` a task."""
        return self._tasks.add(
            resource,
            cause,
            length,
            op=self._number(self._ops, op),
            kernel=self._number(self._kernels, kernel),
            waits=waits,
            ordered=ordered,
        )

    def intervals(self) -> Intervals:
        """Return the intervals that were added, each from the end of its last wait."""
        tasks = self._tasks.tasks()
        start, end = run(tasks)
        tasks = replace(tasks, length=end - start)  # as its clocks show them
        return Intervals(tasks, start, end, self._ops, self._kernels)

    def _number(self, objects: list[T], value: T | None) -> int:
        """Return the number of an object, which is appended to ``objects`` if new; -1 for none."""
        if value is None:
            return -1
        number = self._numbers.setdefault(id(value), len(objects))
        if number == len(objects):
            objects.append(value)
        return number
