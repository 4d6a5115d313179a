"""Replay of a recorded step: measured kernels, extracted overheads, and dependences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from irgraph.capture.kineto.events.device import Orders, StartCause, device_orders, stream_of
from irgraph.capture.kineto.events.host import HostItem, HostView, RuntimeCall, host_view
from irgraph.capture.kineto.events.steps import TraceStep
from irgraph.capture.kineto.events.tree import Tree
from irgraph.capture.kineto.reading.trace import Integers, KinetoTrace
from irgraph.ir.cost import Kernel
from irgraph.overheads.samples import KINDS, US, HostSample, Samples, collect, gaps, item_samples
from irgraph.replay.host_times import HostTimes
from irgraph.replay.uncertainty import step_interval
from irgraph.schedule.tasks import TaskBuilder, run
from irgraph.schedule.timeline import Intervals, Resource, Timeline, busy_time

SLOW_FACTOR = 1.5
"""Maximum length of a step used for statistics, in medians: longer ones warm up or allocate."""

MIN_STEPS = 3
"""Minimum number of steps to find slow ones by their median."""

DELAYED_FACTOR = 10.0
"""Number of typical latencies after which work must have been delayed by something that the trace
does not show; the replay delays it equally."""


class Replayed(Struct, frozen=True):
    """One step, simulated and measured; times in microseconds.

    Attributes:
        rank, step: numbers of the rank and of the step.
        measured, simulated: step time.
        active, simulated_active: time with work on at least one stream, within the step.
        left_out: reason why the step is excluded from statistics, ``""`` if it is not.
        timeline: the simulated step.
        interval: the middle 90 % of the step times that another trace's host times allow, ``None``
            with the trace's own host times.
    """

    rank: int
    step: int
    measured: float
    simulated: float
    active: float
    simulated_active: float
    left_out: str
    timeline: Timeline
    interval: tuple[float, float] | None = None

    @property
    def error(self) -> float:
        """Signed error of the simulated step time."""
        return self.simulated / self.measured - 1 if self.measured else 0.0

    @property
    def within(self) -> bool:
        """Whether the measured step time is within the interval."""
        return self.interval is not None and self.interval[0] <= self.measured <= self.interval[1]

    def without_timeline(self) -> Replayed:
        """Return the step without its timeline."""
        return replace(self, timeline=Timeline((), (), ""))

    def row(self) -> dict[str, float | int | str | None]:
        """Return the figures as plain values; without an interval its ends are ``None``."""
        low, high = self.interval or (None, None)
        return {
            "rank": self.rank,
            "step": self.step,
            "measured_us": round(self.measured, 3),
            "simulated_us": round(self.simulated, 3),
            "low_us": low and round(low, 3),
            "high_us": high and round(high, 3),
            "error": round(self.error, 5),
            "gpu_active_us": round(self.active, 3),
            "simulated_gpu_active_us": round(self.simulated_active, 3),
            "gpu_idle_us": round(self.measured - self.active, 3),
            "simulated_gpu_idle_us": round(self.simulated - self.simulated_active, 3),
            "left_out": self.left_out,
        }


class DeviceWork(Struct, frozen=True):
    """Device work sorted by start, so that the work of a step is found quickly.

    Attributes:
        rows: of the trace.
        start, end: nanoseconds, of each row.
        reached: the latest end so far.
    """

    rows: Integers
    start: Integers
    end: Integers
    reached: Integers

    def within(self, step: TraceStep) -> slice:
        """Return a range of rows that contains all work within a step, and little else."""
        first = int(np.searchsorted(self.reached, step.start, side="right"))
        return slice(first, max(first, int(np.searchsorted(self.start, step.end))))

    def active(self, step: TraceStep) -> float:
        """Return microseconds of a step with work on at least one stream."""
        inside = self.within(step)
        start, end = (np.clip(t[inside], step.start, step.end) for t in (self.start, self.end))
        return busy_time(start / US, end / US)


def device_work(trace: KinetoTrace) -> DeviceWork:
    """Return the device work of a trace."""
    rows = np.flatnonzero(trace.on_device)
    rows = rows[np.argsort(trace.columns["start"][rows], kind="stable")]
    start = trace.columns["start"][rows]
    end = start + trace.columns["duration"][rows]
    return DeviceWork(rows, start, end, np.maximum.accumulate(end))


@dataclass(slots=True)
class Replayer:
    """A trace prepared for replays.

    Attributes:
        tree: its event tree.
        view: its host calls.
        orders: waits of device work.
        work: its device work.
        left_out: reasons of steps excluded from statistics, by step number.
    """

    tree: Tree
    view: HostView
    orders: Orders
    work: DeviceWork
    left_out: dict[int, str]

    @property
    def typical_step_indices(self) -> list[int]:
        """Indices of the complete steps used for statistics."""
        numbered = enumerate(self.tree.steps)
        return [i for i, s in numbered if s.complete and s.number not in self.left_out]

    @property
    def typical_steps(self) -> list[TraceStep]:
        """The complete steps used for statistics."""
        return [self.tree.steps[i] for i in self.typical_step_indices]

    def samples(self) -> Samples:
        """Return the overhead samples of the typical steps."""
        return collect(self.view, self.typical_steps)

    def replay(self, step: TraceStep, host_times: HostTimes) -> Replayed:
        """Return the replay of one step."""
        step_replay = _StepReplay(self, step, host_times)
        timeline, simulated = step_replay.timeline()
        interval = step_replay.interval() if host_times.other else None
        work = timeline.columns.tasks.has_cause("kernel")
        busy = busy_time(
            *(t[work].clip(max=simulated) for t in (timeline.columns.start, timeline.columns.end))
        )
        active = self.work.active(step)
        left_out = self.left_out.get(step.number, "")
        times = (step.time, simulated, active, busy)
        return Replayed(
            self.tree.trace.rank, step.number, *times, left_out, timeline, interval=interval
        )

    def replay_all(self, host_times: HostTimes | None = None) -> list[Replayed]:
        """Return the replay of every complete step."""
        host_times = host_times or HostTimes(self.samples())
        return [self.replay(step, host_times) for step in self.tree.steps if step.complete]


def excluded_steps(tree: Tree) -> dict[int, str]:
    """Return the reasons of complete steps excluded from statistics, by step number.

    Excluded are steps without device work if others have some, and, of at least ``MIN_STEPS``
    others, steps far longer than the median. Never all steps are excluded.
    """
    steps = {index: step for index, step in enumerate(tree.steps) if step.complete}
    working = np.unique(tree.step[tree.trace.on_device])
    with_work = {index: step for index, step in steps.items() if index in working} or steps
    reason_by_number = {
        step.number: "no device work" for index, step in steps.items() if index not in with_work
    }
    if len(with_work) >= MIN_STEPS:
        limit = SLOW_FACTOR * float(np.median([step.time for step in with_work.values()]))
        reason_by_number.update(
            {step.number: "slow" for step in with_work.values() if step.time > limit}
        )
    return reason_by_number


def select_typical_steps(tree: Tree) -> list[TraceStep]:
    """Return the complete steps used for statistics."""
    excluded = excluded_steps(tree)
    return [step for step in tree.steps if step.complete and step.number not in excluded]


def build_replayer(tree: Tree) -> Replayer:
    """Return a trace prepared for replays: with its waits and the delays of its device."""
    view = host_view(tree)
    return Replayer(tree, view, device_orders(tree), device_work(tree.trace), excluded_steps(tree))


class _StepReplay:
    """The replay of one step."""

    def __init__(self, replayer: Replayer, step: TraceStep, host_times: HostTimes) -> None:
        self.replayer = replayer
        self.tree = replayer.tree
        self.step = step
        self.host_times = host_times
        self.build = TaskBuilder()
        self.kernels: list[Kernel] = []
        self.resources: dict[Resource, int] = {}
        self.streams: dict[tuple[int, int], int] = {}
        self.task_of_row: dict[int, int] = {}
        self.first_part_of_row: dict[int, int] = {}
        self.sample_of_task: dict[int, HostSample] = {}
        self.final = self._add_all()

    def interval(self) -> tuple[float, float]:
        """Return the middle 90 % of the possible step times, in microseconds."""
        return step_interval(self.build.tasks(), self.final, self.sample_of_task, self.host_times)

    def timeline(self) -> tuple[Timeline, float]:
        """Return the timeline, and the time at which the host finishes the step in microseconds."""
        tasks = self.build.tasks()
        intervals = Intervals(tasks, *run(tasks), kernels=self.kernels)
        device = self.tree.trace.device_name
        timeline = Timeline(intervals, tuple(self.resources), device, accounting="replay")
        return timeline, float(intervals.end[self.final])

    def _add_all(self) -> int:
        """Add all work of the step; return the last task of its host."""
        items = self.replayer.view.step_items(self.step)
        self._add_earlier_work(items)
        main = self._thread(items[0])
        last_tasks = {0: self.build.add(main, "T1", 0.0)}
        index = 0
        for gap in gaps(self.replayer.view, items):
            index += 1
            thread = self._thread(gap.item)
            waits = [last_tasks[gap.before]]
            if gap.awaits in self.task_of_row:
                waits.append(self.task_of_row[gap.awaits])
            self._add_host_time(thread, "T1", gap.sample, waits=waits)
            self._add_operation(gap.item, thread)
            last_tasks[index] = self.build.last(thread)
        return last_tasks[index]

    def _add_host_time(
        self,
        thread: int,
        cause: str,
        sample: HostSample,
        kernel: int = -1,
        waits: Sequence[int] = (),
    ) -> None:
        """Add host time of a thread, with the duration charged for a sample."""
        length = max(0.0, self.host_times.duration(sample))
        task = self.build.add(thread, cause, length, kernel=kernel, waits=waits)
        self.sample_of_task[task] = sample

    def _thread(self, item: HostItem) -> int:
        backward = item.thread in self.tree.backward
        return self._resource("host", "backward" if backward else "main")

    def _stream(self, row: int) -> int:
        key = stream_of(self.tree.trace, row)
        if key not in self.streams:
            device, stream = key
            self.streams[key] = self._resource(f"gpu{max(device, 0)}", f"stream{stream}")
        return self.streams[key]

    def _resource(self, kind: str, name: str) -> int:
        return self.resources.setdefault(Resource(kind, name), len(self.resources))

    def _add_earlier_work(self, items: Sequence[HostItem]) -> None:
        """Add work of earlier steps, and work without a launch, at its measured time."""
        trace = self.tree.trace
        own_rows = {row for item in items for call in item.calls for row in call.work}
        rows_within = self.replayer.work.within(self.step)
        columns = (self.replayer.work.rows, self.replayer.work.start, self.replayer.work.end)
        for row, start, end in sorted(
            zip(*(c[rows_within].tolist() for c in columns), strict=True)
        ):
            launch = int(self.tree.launch[row])
            launched = int(trace.columns["start"][launch]) if launch >= 0 else start
            if row in own_rows or launched >= self.step.end or end <= self.step.start:
                continue
            first = max(0, start - self.step.start) / US
            length = (end - max(start, self.step.start)) / US
            wait = self.build.add(self._stream(row), "gap", first, ordered=False)
            self._add_work(row, length, (wait,))

    def _add_work(self, row: int, length: float, waits: tuple[int, ...]) -> None:
        """Add one task of device work."""
        trace = self.tree.trace
        kernel = Kernel(trace.text(row), KINDS[int(trace.columns["kind"][row])], length)
        resource = self._stream(row)
        self.kernels.append(kernel)
        number = len(self.kernels) - 1
        self.task_of_row[row] = self.build.add(
            resource, "kernel", length, kernel=number, waits=waits
        )

    def _add_operation(self, item: HostItem, thread: int) -> None:
        """Add an operation: T2, launches and waits with T5 between, T3."""
        samples: Iterator[HostSample] = item_samples(self.replayer.view, item)
        calls = iter(item.calls)
        for sample in samples:
            if sample.kind in ("T4", "wait", "sync"):
                self._add_call(next(calls), sample, thread)
            else:
                self._add_host_time(thread, "T5" if sample.kind == "whole" else sample.kind, sample)

    def _add_call(self, call: RuntimeCall, sample: HostSample, thread: int) -> None:
        """Add a launch or a wait."""
        before = self.build.last(thread)
        length = self.host_times.duration(sample)
        for row in call.work:
            self._add_launched_work(row, call, before, length if row == call.awaits else 0.0)
        if sample.kind == "T4":
            self._add_host_time(thread, "T4", sample, len(self.kernels) - 1 if call.work else -1)
            return
        waits = self.first_part_of_row.get(call.awaits, self.task_of_row.get(call.awaits, -1))
        if sample.kind == "sync":
            waits = self._last_work(call)
        self._add_host_time(thread, "sync", sample, waits=(waits,) if waits >= 0 else ())

    def _last_work(self, call: RuntimeCall) -> int:
        """Return the device work added last, for a redundant wait; -1 if the call awaits work."""
        return max(self.task_of_row.values(), default=-1) if call.awaits < 0 else -1

    def _add_launched_work(self, row: int, call: RuntimeCall, before: int, early: float) -> None:
        """Add work after its launch, its stream and the work of other streams that it awaits.

        ``early`` is negative if the launch returns before the work ends: its microseconds.
        """
        trace = self.tree.trace
        stream = self._stream(row)
        start = self.replayer.orders.starts[row]
        earlier = (before,) if before >= 0 else ()
        delay = self._latency(start, call, row)
        waits = [self.build.add(stream, "latency", delay, waits=earlier, ordered=False)]
        awaited = tuple(
            self.task_of_row[other] for other in start.awaited if other in self.task_of_row
        )
        gap = start.delay if start.queued else self.replayer.orders.gap
        if awaited or self.build.last(stream) >= 0:
            ordered = not awaited
            position = self.build.add(stream, "gap", gap / US, waits=awaited, ordered=ordered)
            waits.append(position)
        length = int(trace.columns["duration"][row]) / US
        if early < 0:
            # the call of a copy from pageable memory returns before the last part is copied
            self._add_work(row, max(0.0, length + early), tuple(waits))
            self.first_part_of_row[row] = self.task_of_row[row]
            self._add_work(row, min(length, -early), ())
        else:
            self._add_work(row, length, tuple(waits))

    def _latency(self, start: StartCause, call: RuntimeCall, row: int) -> float:
        """Return the microseconds from the start of a launch to the start of unobstructed work."""
        typical = self.replayer.orders.latency[call.function]
        measured = not start.queued and (
            self.host_times.samples is None
            or call.awaits == row
            or start.delay > DELAYED_FACTOR * typical
        )
        return (start.delay if measured else typical) / US
