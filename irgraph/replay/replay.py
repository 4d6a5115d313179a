"""Replay of a recorded step: measured kernels, extracted overheads, and dependences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from irgraph.capture.kineto.events.device import Orders, Start, device_orders, stream_of
from irgraph.capture.kineto.events.host import Call, HostView, Item, host_view
from irgraph.capture.kineto.events.steps import Step
from irgraph.capture.kineto.events.tree import Tree
from irgraph.capture.kineto.reading.trace import Integers, KinetoTrace
from irgraph.ir.cost import Kernel
from irgraph.overheads.rules import Rule, keep_all
from irgraph.overheads.samples import KINDS, US, Sample, Samples, collect, gaps, of_item
from irgraph.schedule.tasks import TaskBuilder, run
from irgraph.schedule.timeline import Intervals, Resource, Timeline, busy_time

SLOW = 1.5
"""Steps longer than this many medians are left out of statistics: warm-up, allocation."""

FEWEST = 3
"""Minimum number of steps to find slow ones by their median."""

UNUSUAL = 10.0
"""Work that starts this many usual latencies after its launch was delayed by something that the
trace does not show; the replay delays it equally."""


class Lengths(Struct, frozen=True):
    """Host times of a replay: each sample as measured, or statistics of similar samples.

    Attributes:
        samples: of the statistics; ``None`` takes every sample as measured.
        rule: which samples count.
        scale: factor for a host of another speed, on all but data loading and waits.
    """

    samples: Samples | None = None
    rule: Rule = keep_all
    scale: float = 1.0
    _known: dict[tuple[tuple[str, str, str], str], float] = field(default_factory=dict)

    def of(self, sample: Sample) -> float:
        """Return the microseconds to charge for a sample of host time."""
        if self.samples is None or "loader" in (sample.kind, sample.place.removeprefix("behind ")):
            return sample.time
        key = (sample.key, sample.shape)
        if key not in self._known:
            scale = 1.0 if sample.kind == "wait" else self.scale
            self._known[key] = scale * self._mean(sample)
        return self._known[key]

    def _mean(self, sample: Sample) -> float:
        """Return the mean of similar samples: same shapes, else same name, else same kind."""
        groups = self.samples.by_key if self.samples is not None else {}
        found = groups.get(sample.key, [])
        alike = [s.time for s in found if s.shape == sample.shape] or [s.time for s in found]
        if not alike:
            alike = [
                s.time
                for (kind, _, place), group in groups.items()
                if kind == sample.kind and place == sample.place
                for s in group
            ]
        if not alike:
            return sample.time
        return float(self.rule(np.sort(np.asarray(alike, float))).mean())


def launch_ratio(of: Samples, other: Samples) -> float:
    """Return the ratio of launch times of two hosts: a probe of their speed.

    Only launches of kernels are compared (T4), by runtime function, weighted by how often both
    made them.
    """
    pairs = []
    for key, mine in of.by_key.items():
        theirs = other.by_key.get(key)
        if key[0] == "T4" and key[2] == "kernel" and theirs:
            means = [float(np.mean([s.time for s in group])) for group in (mine, theirs)]
            pairs.append((means[0] / means[1], min(len(mine), len(theirs))))
    total = sum(count for _, count in pairs)
    return sum(ratio * count for ratio, count in pairs) / total if total else 1.0


class Replayed(Struct, frozen=True):
    """One step, simulated and measured; times in microseconds.

    Attributes:
        rank, step: which step.
        measured, simulated: step time.
        active, simulated_active: time with work on at least one stream, within the step.
        left_out: why the step is excluded from statistics, ``""`` if it is not.
        timeline: the simulated step.
    """

    rank: int
    step: int
    measured: float
    simulated: float
    active: float
    simulated_active: float
    left_out: str
    timeline: Timeline

    @property
    def error(self) -> float:
        """Signed error of the simulated step time."""
        return self.simulated / self.measured - 1 if self.measured else 0.0

    def without_timeline(self) -> Replayed:
        """Return the figures alone."""
        return replace(self, timeline=Timeline((), (), ""))

    def row(self) -> dict[str, float | int | str]:
        """Return the figures as plain values."""
        return {
            "rank": self.rank,
            "step": self.step,
            "measured_us": round(self.measured, 3),
            "simulated_us": round(self.simulated, 3),
            "error": round(self.error, 5),
            "gpu_active_us": round(self.active, 3),
            "simulated_gpu_active_us": round(self.simulated_active, 3),
            "gpu_idle_us": round(self.measured - self.active, 3),
            "simulated_gpu_idle_us": round(self.simulated - self.simulated_active, 3),
            "left_out": self.left_out,
        }


class Work(Struct, frozen=True):
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

    def within(self, step: Step) -> slice:
        """Return a range of rows that holds all work within a step, and little else."""
        first = int(np.searchsorted(self.reached, step.start, side="right"))
        return slice(first, max(first, int(np.searchsorted(self.start, step.end))))

    def active(self, step: Step) -> float:
        """Return microseconds of a step with work on at least one stream."""
        inside = self.within(step)
        start, end = (np.clip(t[inside], step.start, step.end) for t in (self.start, self.end))
        return busy_time(start / US, end / US)


def device_work(trace: KinetoTrace) -> Work:
    """Return the device work of a trace."""
    rows = np.flatnonzero(trace.on_device)
    rows = rows[np.argsort(trace.columns["start"][rows], kind="stable")]
    start = trace.columns["start"][rows]
    end = start + trace.columns["duration"][rows]
    return Work(rows, start, end, np.maximum.accumulate(end))


@dataclass(slots=True)
class Replayer:
    """A trace prepared for replays.

    Attributes:
        tree: its event tree.
        view: its host calls.
        orders: what device work waits for.
        work: its device work.
        left_out: steps excluded from statistics, by number, and why.
    """

    tree: Tree
    view: HostView
    orders: Orders
    work: Work
    left_out: dict[int, str]

    @property
    def usual_places(self) -> list[int]:
        """Positions among the steps of those that are complete and used for statistics."""
        every = enumerate(self.tree.steps)
        return [i for i, s in every if s.complete and s.number not in self.left_out]

    @property
    def usual(self) -> list[Step]:
        """The complete steps used for statistics."""
        return [self.tree.steps[i] for i in self.usual_places]

    def samples(self) -> Samples:
        """Return the overheads of the usual steps."""
        return collect(self.view, self.usual)

    def replay(self, step: Step, lengths: Lengths) -> Replayed:
        """Return the replay of one step."""
        timeline, simulated = _Run(self, step, lengths).timeline()
        work = timeline.columns.tasks.having("kernel")
        busy = busy_time(
            *(t[work].clip(max=simulated) for t in (timeline.columns.start, timeline.columns.end))
        )
        active = self.work.active(step)
        left_out = self.left_out.get(step.number, "")
        rank = self.tree.trace.rank
        return Replayed(rank, step.number, step.time, simulated, active, busy, left_out, timeline)

    def replay_all(self, lengths: Lengths | None = None) -> list[Replayed]:
        """Return the replay of every complete step."""
        lengths = lengths or Lengths(self.samples())
        return [self.replay(step, lengths) for step in self.tree.steps if step.complete]


def left_out(tree: Tree) -> dict[int, str]:
    """Return the complete steps excluded from statistics, by number, and why.

    Those without device work where others have some, and, of at least ``FEWEST`` others, those far
    longer than the median. Never all steps.
    """
    steps = {at: step for at, step in enumerate(tree.steps) if step.complete}
    working = np.unique(tree.step[tree.trace.on_device])
    kept = {at: step for at, step in steps.items() if at in working} or steps
    found = {step.number: "no device work" for at, step in steps.items() if at not in kept}
    if len(kept) >= FEWEST:
        limit = SLOW * float(np.median([step.time for step in kept.values()]))
        found.update({step.number: "slow" for step in kept.values() if step.time > limit})
    return found


def usual_steps(tree: Tree) -> list[Step]:
    """Return the complete steps used for statistics."""
    without = left_out(tree)
    return [step for step in tree.steps if step.complete and step.number not in without]


def replayer(tree: Tree) -> Replayer:
    """Prepare a trace for replays: find its waits and the delays of its device."""
    view = host_view(tree)
    return Replayer(tree, view, device_orders(tree), device_work(tree.trace), left_out(tree))


class _Run:
    """The replay of one step."""

    def __init__(self, of: Replayer, step: Step, lengths: Lengths) -> None:
        self.of = of
        self.tree = of.tree
        self.step = step
        self.lengths = lengths
        self.build = TaskBuilder()
        self.kernels: list[Kernel] = []
        self.resources: dict[Resource, int] = {}
        self.streams: dict[tuple[int, int], int] = {}
        self.done: dict[int, int] = {}
        self.part: dict[int, int] = {}
        self.last: dict[tuple[int, int], int] = {}

    def timeline(self) -> tuple[Timeline, float]:
        """Return the timeline, and when the host finishes the step, in microseconds."""
        final = self._charge()
        tasks = self.build.tasks()
        intervals = Intervals(tasks, *run(tasks), kernels=self.kernels)
        device = self.tree.trace.device_name
        timeline = Timeline(intervals, tuple(self.resources), device, accounting="replay")
        return timeline, float(intervals.end[final])

    def _charge(self) -> int:
        """Add all work of the step; return the last task of its host."""
        items = self.of.view.of_step(self.step)
        self._carry_in(items)
        main = self._thread(items[0])
        after = {0: self.build.add(main, "T1", 0.0)}
        at = 0
        for gap in gaps(self.of.view, items):
            at += 1
            thread = self._thread(gap.item)
            waits = [after[gap.before]]
            if gap.awaits in self.done:
                waits.append(self.done[gap.awaits])
            length = self.lengths.of(gap.sample)
            after[at] = self.build.add(thread, "T1", length, waits=tuple(waits))
            self._inside(gap.item, thread)
            after[at] = self.build.last(thread)
        return after[at]

    def _thread(self, item: Item) -> int:
        backward = item.thread in self.tree.backward
        return self._resource("host", "backward" if backward else "main")

    def _stream(self, row: int) -> int:
        place = stream_of(self.tree.trace, row)
        if place not in self.streams:
            device, stream = place
            self.streams[place] = self._resource(f"gpu{max(device, 0)}", f"stream{stream}")
        return self.streams[place]

    def _resource(self, kind: str, name: str) -> int:
        return self.resources.setdefault(Resource(kind, name), len(self.resources))

    def _carry_in(self, items: Sequence[Item]) -> None:
        """Place work of earlier steps and work without a launch at its measured time."""
        trace = self.tree.trace
        mine = {row for item in items for call in item.calls for row in call.work}
        inside = self.of.work.within(self.step)
        columns = (self.of.work.rows, self.of.work.start, self.of.work.end)
        for row, begun, end in sorted(zip(*(c[inside].tolist() for c in columns), strict=True)):
            launch = int(self.tree.launch[row])
            launched = int(trace.columns["start"][launch]) if launch >= 0 else begun
            if row in mine or launched >= self.step.end or end <= self.step.start:
                continue
            first = max(0, begun - self.step.start) / US
            length = (end - max(begun, self.step.start)) / US
            wait = self.build.add(self._stream(row), "gap", first, ordered=False)
            self._work(row, length, (wait,))

    def _work(self, row: int, length: float, waits: tuple[int, ...]) -> None:
        """Add device work, split where something waits for it before its end."""
        trace = self.tree.trace
        kernel = Kernel(trace.text(row), KINDS[int(trace.columns["kind"][row])], length)
        resource = self._stream(row)
        self.kernels.append(kernel)
        number = len(self.kernels) - 1
        self.done[row] = self.build.add(resource, "kernel", length, kernel=number, waits=waits)

    def _inside(self, item: Item, thread: int) -> None:
        """Add an operation: T2, launches and waits with T5 between, T3."""
        samples: Iterator[Sample] = of_item(self.of.view, item)
        calls = iter(item.calls)
        for sample in samples:
            length = max(0.0, self.lengths.of(sample))
            if sample.kind in ("T4", "wait", "sync"):
                self._call(next(calls), sample, thread)
            else:
                cause = "T5" if sample.kind == "whole" else sample.kind
                self.build.add(thread, cause, length)

    def _call(self, call: Call, sample: Sample, thread: int) -> None:
        """Add a launch or a wait."""
        before = self.build.last(thread)
        length = self.lengths.of(sample)
        for row in call.work:
            self._launch(row, call, before, length if row == call.awaits else 0.0)
        if sample.kind == "T4":
            launched = len(self.kernels) - 1 if call.work else -1
            self.build.add(thread, "T4", length, kernel=launched)
            return
        waits = self.part.get(call.awaits, self.done.get(call.awaits, -1))
        if sample.kind == "sync":
            waits = self._latest(call)
        known = (waits,) if waits >= 0 else ()
        self.build.add(thread, "sync", max(0.0, length), waits=known)

    def _latest(self, call: Call) -> int:
        """Return the last work of the stream last launched to, for a redundant wait."""
        return max(self.done.values(), default=-1) if call.awaits < 0 else -1

    def _launch(self, row: int, call: Call, before: int, early: float) -> None:
        """Add work after its launch, its stream and the work of other streams that it awaits."""
        trace = self.tree.trace
        stream = self._stream(row)
        start = self.of.orders.starts[row]
        earlier = (before,) if before >= 0 else ()
        delay = self._latency(start, call, row)
        waits = [self.build.add(stream, "latency", delay, waits=earlier, ordered=False)]
        known = tuple(self.done[other] for other in start.across if other in self.done)
        gap = start.delay if start.queued else self.of.orders.gap
        if known or self.build.last(stream) >= 0:
            ordered = not known
            position = self.build.add(stream, "gap", gap / US, waits=known, ordered=ordered)
            waits.append(position)
        length = int(trace.columns["duration"][row]) / US
        if early < 0:
            # a copy from pageable memory lets its call return before its last part is done
            self._work(row, max(0.0, length + early), tuple(waits))
            self.part[row] = self.done[row]
            self._work(row, min(length, -early), ())
        else:
            self._work(row, length, tuple(waits))

    def _latency(self, start: Start, call: Call, row: int) -> float:
        """Return microseconds from the start of a launch to that of unobstructed work."""
        usual = self.of.orders.latency[call.function]
        measured = not start.queued and (
            self.lengths.samples is None or call.awaits == row or start.delay > UNUSUAL * usual
        )
        return (start.delay if measured else usual) / US
