"""One recorded step, simulated: its host times, launches, waits and device work as tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from irgraph.capture.kineto.events.device import Orders, StartCause, stream_of
from irgraph.capture.kineto.events.host import HostItem, HostView, RuntimeCall
from irgraph.capture.kineto.events.tree import Tree
from irgraph.ir.cost import Kernel
from irgraph.overheads.samples import KINDS, US, HostSample, gaps, item_samples
from irgraph.replay.device_work import Backlog, DeviceWork, EarlierWork, earlier_work
from irgraph.replay.host_times import HostTimes
from irgraph.replay.uncertainty import step_interval
from irgraph.schedule.tasks import TaskBuilder, run
from irgraph.schedule.timeline import Intervals, Resource, Timeline

DELAYED_FACTOR = 10.0
"""Number of typical latencies after which work must have been delayed by something that the trace
does not show; the replay delays it equally."""


class RecordedTrace(Struct, frozen=True):
    """A trace prepared for replays of its steps.

    Attributes:
        view: its host calls and launch queues.
        orders: waits of device work.
        work: its device work.
    """

    view: HostView
    orders: Orders
    work: DeviceWork

    @property
    def tree(self) -> Tree:
        """The event tree."""
        return self.view.tree


class StepReplay:
    """The replay of one step.

    Args:
        recording: the trace.
        index: of the step.
        host_times: times to charge.
        backlog: device work that simulated steps before it left, ``None`` to place all work of
            earlier steps as measured.
    """

    def __init__(
        self, recording: RecordedTrace, index: int, host_times: HostTimes, backlog: Backlog | None
    ) -> None:
        self.recording = recording
        self.tree = recording.tree
        self.step = recording.tree.steps[index]
        self.index = index
        self.host_times = host_times
        self.first_step = index if backlog is None else backlog.first
        self.build = TaskBuilder()
        self.kernels: list[Kernel] = []
        self.resources: dict[Resource, int] = {}
        self.streams: dict[tuple[int, int], int] = {}
        self.task_of_row: dict[int, int] = {}
        self.first_part_of_row: dict[int, int] = {}
        self.start_of_row: dict[int, int] = {}
        self.sample_of_task: dict[int, HostSample] = {}
        self.releasing = self._releasing_rows()
        self._add_earlier_work(earlier_work(self.tree, recording.work, index, backlog))
        self.final = self._add_items()

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

    def backlog(self, timeline: Timeline, step_end: float) -> Backlog:
        """Return the device work that is not done when the host ends the step.

        Args:
            timeline: of the step.
            step_end: microseconds, the end of its host.
        """
        starts, ends = timeline.columns.start, timeline.columns.end
        times_by_row: dict[int, tuple[float, float]] = {}
        for row, task in self.task_of_row.items():
            if ends[task] > step_end:
                first = self.first_part_of_row.get(row, task)
                times = float(starts[first]) - step_end, float(ends[task]) - step_end
                times_by_row[row] = times
        return Backlog(self.first_step, times_by_row)

    def _add_items(self) -> int:
        """Add all work of the step; return the last task of its host."""
        items = self.recording.view.step_items(self.step)
        main = self._thread(items[0])
        last_tasks = {0: self.build.add(main, "T1", 0.0)}
        index = 0
        for gap in gaps(self.recording.view, items):
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

    def _add_earlier_work(self, works: Iterator[EarlierWork]) -> None:
        """Add work of earlier steps, and work without a launch, at its time."""
        for work in works:
            start = max(0.0, work.start)
            wait = self.build.add(self._stream(work.row), "earlier", start, ordered=False)
            self._add_work(work.row, work.end - start, (wait,))

    def _add_work(self, row: int, length: float, waits: Sequence[int]) -> None:
        """Add one task of device work."""
        trace = self.tree.trace
        kernel = Kernel(trace.text(row), KINDS[int(trace.columns["kind"][row])], length)
        resource = self._stream(row)
        if row in self.releasing and row not in self.start_of_row:
            # a task has no wait for the start of another: an empty task takes its place
            waits = [self.build.add(resource, "gap", 0.0, waits=waits)]
            self.start_of_row[row] = waits[0]
        self.kernels.append(kernel)
        number = len(self.kernels) - 1
        self.task_of_row[row] = self.build.add(
            resource, "kernel", length, kernel=number, waits=waits
        )

    def _add_operation(self, item: HostItem, thread: int) -> None:
        """Add an operation: T2, launches and waits with T5 between, T3."""
        samples: Iterator[HostSample] = item_samples(self.recording.view, item)
        calls = iter(item.calls)
        for sample in samples:
            if sample.kind in ("T4", "wait", "sync", "queue"):
                self._add_call(next(calls), sample, thread)
            else:
                self._add_host_time(thread, "T5" if sample.kind == "whole" else sample.kind, sample)

    def _add_call(self, call: RuntimeCall, sample: HostSample, thread: int) -> None:
        """Add a launch or a wait."""
        before = self.build.last(thread)
        length = self.host_times.duration(sample)
        room = self._room(call)
        for row in call.work:
            self._add_launched_work(row, call, before, length if row == call.awaits else 0.0)
        if sample.kind in ("T4", "queue"):
            kernel = len(self.kernels) - 1 if call.work else -1
            self._add_host_time(thread, "T4", sample, kernel, room)
            return
        waits = self.first_part_of_row.get(call.awaits, self.task_of_row.get(call.awaits, -1))
        if sample.kind == "sync":
            waits = self._last_work(call)
        self._add_host_time(thread, "sync", sample, waits=(waits,) if waits >= 0 else ())

    def _releasing_rows(self) -> frozenset[int]:
        """Return the work whose start makes room in the queue for a launch of the step."""
        items = self.recording.view.step_items(self.step)
        rows = (self._releasing_row(call) for item in items for call in item.calls)
        return frozenset(rows) - {-1}

    def _releasing_row(self, call: RuntimeCall) -> int:
        """Return the work that makes room in the queue for a launch, -1 for none.

        With measured host times it is the work that released the launch in the trace, otherwise
        the work that is as many launches before it as the queue holds.
        """
        if self.host_times.samples is not None:
            return self.recording.view.queues.work_before(call.row)
        return call.release.work if call.release is not None else -1

    def _room(self, call: RuntimeCall) -> tuple[int, ...]:
        """Return the task after which the queue has room for a launch."""
        row = self._releasing_row(call)
        if row not in self.task_of_row:
            return ()
        until_end = self.recording.view.queues.until_end(stream_of(self.tree.trace, row))
        return (self.task_of_row[row] if until_end else self.start_of_row[row],)

    def _last_work(self, call: RuntimeCall) -> int:
        """Return the device work added last, for a redundant wait; -1 if the call awaits work."""
        return max(self.task_of_row.values(), default=-1) if call.awaits < 0 else -1

    def _add_launched_work(self, row: int, call: RuntimeCall, before: int, early: float) -> None:
        """Add work after its launch, its stream and the work of other streams that it awaits.

        ``early`` is negative if the launch returns before the work ends: its microseconds.
        """
        trace = self.tree.trace
        stream = self._stream(row)
        start = self.recording.orders.starts[row]
        earlier = (before,) if before >= 0 else ()
        delay = self._latency(start, call, row)
        waits = [self.build.add(stream, "latency", delay, waits=earlier, ordered=False)]
        awaited = tuple(
            self.task_of_row[other] for other in start.awaited if other in self.task_of_row
        )
        gap = start.delay if start.queued else self.recording.orders.gap
        if awaited or self.build.last(stream) >= 0:
            ordered = not awaited
            position = self.build.add(stream, "gap", gap / US, waits=awaited, ordered=ordered)
            waits.append(position)
        length = int(trace.columns["duration"][row]) / US
        if early < 0:
            # the call of a copy from pageable memory returns before the last part is copied
            self._add_work(row, max(0.0, length + early), waits)
            self.first_part_of_row[row] = self.task_of_row[row]
            self._add_work(row, min(length, -early), ())
        else:
            self._add_work(row, length, waits)

    def _latency(self, start: StartCause, call: RuntimeCall, row: int) -> float:
        """Return the microseconds from the start of a launch to the start of unobstructed work."""
        typical = self.recording.orders.latency[call.function]
        measured = not start.queued and (
            self.host_times.samples is None
            or call.awaits == row
            or start.delay > DELAYED_FACTOR * typical
        )
        return (start.delay if measured else typical) / US
