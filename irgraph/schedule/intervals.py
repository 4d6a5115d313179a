"""Intervals of time of a resource, as objects and as columns of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar, overload

from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.schedule.tasks import Floats, Tasks

Time = TypeVar("Time")


CAUSES = {
    "T1": "between two top-level operations",
    "T2": "from an operation's start to its first launch",
    "T3": "from an operation's last launch to its end",
    "T4": "in the driver, for one launch",
    "T5": "between two launches, or all of an operation that launches nothing",
    "loader": "in the program's data loader",
    "latency": "from the end of a launch to the start of its kernel on an idle device",
    "gap": "between two kernels of a busy stream",
    "earlier": "waiting for earlier steps",
    "kernel": "work of the device",
    "sync": "from the end of the awaited work to the host's return",
    "event": "none: work of a stream that has to wait for that of another",
    "start": "until a rank begins its step",
    "arrival": "none: a rank has come to a collective",
}
"""Causes of intervals (T1-T5: section III-C of the paper)."""

OVERHEADS = ("T1", "T2", "T3", "T4", "T5")
"""Causes of the host's own time."""

CAUSE_NAMES = {
    "T1": "host between operators (T1)",
    "T2": "host before first launch (T2)",
    "T3": "host after last launch (T3)",
    "T4": "host in launch calls (T4)",
    "T5": "host between launches (T5)",
    "loader": "data loader",
    "latency": "launch latency",
    "gap": "gaps between kernels",
    "earlier": "work of earlier steps",
    "sync": "returning from waits",
    "start": "start of the rank",
}
"""Names of causes for readers, with the paper's in parentheses."""

KERNEL = "kernel "
"""Prefix of the causes of device work, before the family of its kernels."""


def cause_name(cause: str) -> str:
    """Return the name of a cause: of ``CAUSES``, or ``kernel FAMILY`` for device work."""
    if cause.startswith(KERNEL):
        return f"{cause.removeprefix(KERNEL)} kernels"
    return CAUSE_NAMES.get(cause, cause)


def by_cause_name(times: Mapping[str, Time]) -> dict[str, Time]:
    """Return times, or pairs of them, by the names of their causes, in the same order."""
    return {cause_name(cause): time for cause, time in times.items()}


def host_time(times: Mapping[str, float]) -> float:
    """Return the time of the host's own work, given times by cause."""
    return sum(times.get(cause, 0.0) for cause in OVERHEADS)


class Interval(NamedTuple):
    """An interval of one resource, in microseconds from the start of the step.

    Attributes:
        resource: index into ``Timeline.resources``.
        cause: a key of ``CAUSES``.
        start, end: microseconds.
        after: positions of the intervals it waited for; it starts when the last of them ends.
        op: the operation it belongs to, if any.
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


class Intervals(Sequence[Interval]):
    """Intervals stored as columns; ``Interval`` objects are made on access.

    Attributes:
        tasks: lengths and waits; with shared resources an interval may be longer than its task.
        start, end: microseconds, ``float64[n]``.
        ops, kernels: operations and kernels that the tasks' indices refer to.
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

    def __len__(self) -> int:
        return len(self.tasks)

    @overload
    def __getitem__(self, index: int) -> Interval: ...

    @overload
    def __getitem__(self, index: slice) -> list[Interval]: ...

    def __getitem__(self, index: int | slice) -> Interval | list[Interval]:
        """Return one interval, or those of a slice."""
        if isinstance(index, slice):
            return [self._interval(position) for position in range(len(self))[index]]
        return self._interval(range(len(self))[index])

    def __iter__(self) -> Iterator[Interval]:
        """Yield every interval in order."""
        tasks = self.tasks
        ops = [*self.ops, None]
        kernels = [*self.kernels, None]
        columns = (tasks.resource, tasks.cause, self.start, self.end, tasks.op, tasks.kernel)
        rows = zip(*(column.tolist() for column in columns), tasks.wait_lists, strict=True)
        for resource, cause, start, end, op, kernel, waits in rows:
            references = (tuple(waits), ops[op], kernels[kernel])
            yield Interval(resource, tasks.causes[cause], start, end, *references)

    def _interval(self, position: int) -> Interval:
        tasks = self.tasks
        op, kernel = int(tasks.op[position]), int(tasks.kernel[position])
        return Interval(
            int(tasks.resource[position]),
            tasks.causes[tasks.cause[position]],
            float(self.start[position]),
            float(self.end[position]),
            tuple(tasks.waits(position).tolist()),
            self.ops[op] if op >= 0 else None,
            self.kernels[kernel] if kernel >= 0 else None,
        )
