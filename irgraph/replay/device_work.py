"""Device work of a trace by time, and the work that earlier steps leave to a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from irgraph.capture.kineto.events.host import HostView
from irgraph.capture.kineto.events.steps import TraceStep
from irgraph.capture.kineto.events.tree import Tree
from irgraph.capture.kineto.reading.trace import Integers
from irgraph.overheads.samples import US
from irgraph.schedule.timeline import busy_time


class DeviceWork(Struct, frozen=True):
    """Device work sorted by start, so that the work of a step is found quickly.

    Attributes:
        rows: of the trace.
        start, end: nanoseconds, of each row.
        reached: the latest end so far.
        launched_in: by row of the trace, the index of the step that launches it, -1 for none.
    """

    rows: Integers
    start: Integers
    end: Integers
    reached: Integers
    launched_in: Integers

    def within(self, step: TraceStep) -> slice:
        """Return a range of rows that contains all work within a step, and little else."""
        first = int(np.searchsorted(self.reached, step.start, side="right"))
        return slice(first, max(first, int(np.searchsorted(self.start, step.end))))

    def active(self, step: TraceStep) -> float:
        """Return microseconds of a step with work on at least one stream."""
        inside = self.within(step)
        start, end = (np.clip(t[inside], step.start, step.end) for t in (self.start, self.end))
        return busy_time(start / US, end / US)


def device_work(view: HostView) -> DeviceWork:
    """Return the device work of a trace."""
    trace = view.tree.trace
    rows = np.flatnonzero(trace.on_device)
    rows = rows[np.argsort(trace.columns["start"][rows], kind="stable")]
    start = trace.columns["start"][rows]
    end = start + trace.columns["duration"][rows]
    return DeviceWork(rows, start, end, np.maximum.accumulate(end), _launch_steps(view))


def _launch_steps(view: HostView) -> Integers:
    """Return the index of the step that launches each device event, -1 if no outermost call does.

    A call that begins in a step belongs to it, even if it ends in the next one.
    """
    tree = view.tree
    steps = np.full(len(tree.trace), -1, "i4")
    begins = np.array([step.start for step in tree.steps], "i8")
    ends = np.array([step.end for step in tree.steps], "i8")
    starts = np.array([item.start for item in view.items], "i8")
    positions = np.searchsorted(begins, starts, side="right") - 1
    positions[starts >= ends[positions]] = -1
    for item, position in zip(view.items, positions.tolist(), strict=True):
        for call in item.calls:
            steps[list(call.work)] = position
    return steps


class Backlog(Struct, frozen=True):
    """Device work that simulated steps launched and that is not yet done.

    Attributes:
        first: index of the first of the consecutive steps that were simulated.
        work: start and end by row, in microseconds from the end of the last of these steps.
    """

    first: int
    work: Mapping[int, tuple[float, float]] = field(default_factory=dict)


class EarlierWork(NamedTuple):
    """Device work that runs in a step and was launched before it.

    Attributes:
        row: row of the device event.
        start, end: microseconds from the start of the step; the start may be negative.
    """

    row: int
    start: float
    end: float


def earlier_work(
    tree: Tree, work: DeviceWork, step: int, backlog: Backlog | None
) -> Iterator[EarlierWork]:
    """Yield the device work that a step does not launch and that runs in it, in order of time.

    Work of simulated steps is as simulated. All other work is as measured: launched before the
    recording or between two steps, by other threads, or without a launch in the trace.

    Args:
        tree: the event tree of the trace.
        work: its device work.
        step: index of the step.
        backlog: of the steps before it, ``None`` if they were not simulated.
    """
    simulated = _simulated_work(tree, step, backlog)
    first = step if backlog is None else backlog.first
    rows = work.rows[work.within(tree.steps[step])]
    steps = work.launched_in[rows]
    rows = rows[(steps < first) | (steps > step)]
    rows = np.union1d(rows, np.array(list(simulated), rows.dtype))
    starts = tree.trace.columns["start"][rows]
    for row in rows[np.argsort(starts, kind="stable")].tolist():
        times = simulated.get(row) or _measured_times(tree, row, tree.steps[step])
        if times is not None:
            yield EarlierWork(row, *times)


def _simulated_work(
    tree: Tree, step: int, backlog: Backlog | None
) -> Mapping[int, tuple[float, float]]:
    """Return the times of simulated work, in microseconds from the start of the next step."""
    if backlog is None:
        return {}
    pause = (tree.steps[step].start - tree.steps[step - 1].end) / US
    times = {row: (start - pause, end - pause) for row, (start, end) in backlog.work.items()}
    return {row: (start, end) for row, (start, end) in times.items() if end > 0}


def _measured_times(tree: Tree, row: int, step: TraceStep) -> tuple[float, float] | None:
    """Return the measured times of work, ``None`` if it is not in the step or launched after it."""
    start, launch = int(tree.trace.columns["start"][row]), int(tree.launch[row])
    end = start + int(tree.trace.columns["duration"][row])
    launched = int(tree.trace.columns["start"][launch]) if launch >= 0 else start
    if launched >= step.end or end <= step.start:
        return None
    return (start - step.start) / US, (end - step.start) / US
