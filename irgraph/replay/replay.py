"""Replay of a recorded step: measured kernels, extracted overheads, and dependences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from irgraph.capture.kineto.events.device import device_orders
from irgraph.capture.kineto.events.host import HostView, host_view
from irgraph.capture.kineto.events.launch_queues import launch_queues
from irgraph.capture.kineto.events.steps import TraceStep
from irgraph.capture.kineto.events.tree import Tree
from irgraph.overheads.samples import US, Samples, collect
from irgraph.replay.device_work import Backlog, DeviceWork, device_work
from irgraph.replay.host_times import HostTimes
from irgraph.replay.step_replay import RecordedTrace, StepReplay
from irgraph.schedule.timeline import Timeline, busy_time

SLOW_FACTOR = 1.5
"""Maximum length of a step used for statistics, in medians: longer ones warm up or allocate."""

MIN_STEPS = 3
"""Minimum number of steps to find slow ones by their median."""


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
        backlog: the device work that is left to the next step.
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
    backlog: Backlog | None = None

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


@dataclass(slots=True)
class Replayer:
    """A trace prepared for replays.

    Attributes:
        recording: its host calls, device work and waits.
        left_out: reasons of steps excluded from statistics, by step number.
    """

    recording: RecordedTrace
    left_out: dict[int, str]

    @property
    def tree(self) -> Tree:
        """The event tree."""
        return self.recording.tree

    @property
    def view(self) -> HostView:
        """The host calls."""
        return self.recording.view

    @property
    def work(self) -> DeviceWork:
        """The device work."""
        return self.recording.work

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

    def replay(
        self, step: TraceStep, host_times: HostTimes, backlog: Backlog | None = None
    ) -> Replayed:
        """Return the replay of one step.

        It starts with the device work that simulated steps before it left, or as measured without
        a ``backlog``.
        """
        step_replay = StepReplay(self.recording, self.tree.steps.index(step), host_times, backlog)
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
            self.tree.trace.rank,
            step.number,
            *times,
            left_out,
            timeline,
            interval=interval,
            backlog=step_replay.backlog(timeline, simulated),
        )

    def replay_all(self, host_times: HostTimes | None = None) -> list[Replayed]:
        """Return the replay of every complete step."""
        host_times = host_times or HostTimes(self.samples())
        return list(self.consecutive(host_times))

    def consecutive(self, host_times: HostTimes) -> Iterator[Replayed]:
        """Yield the replay of every complete step in order.

        Each starts with the device work that the one before left in the simulation. After a step
        that is excluded from statistics, whose times no table describes, it is as measured.
        """
        backlog: Backlog | None = None
        for step in self.tree.steps:
            if not step.complete:
                backlog = None
                continue
            replayed = self.replay(step, host_times, backlog)
            backlog = replayed.backlog if not replayed.left_out else None
            yield replayed


def excluded_steps(tree: Tree) -> dict[int, str]:
    """Return the reasons of complete steps excluded from statistics, by step number.

    Excluded are steps without device work if others have some, and, of at least ``MIN_STEPS``
    others, steps far longer than the median without their waits for full launch queues. Never all
    steps are excluded.
    """
    steps = {index: step for index, step in enumerate(tree.steps) if step.complete}
    working = np.unique(tree.step[tree.trace.on_device])
    with_work = {index: step for index, step in steps.items() if index in working} or steps
    reason_by_number = {
        step.number: "no device work" for index, step in steps.items() if index not in with_work
    }
    if len(with_work) >= MIN_STEPS:
        limit = SLOW_FACTOR * float(np.median([step.time for step in with_work.values()]))
        slow = {index: step for index, step in with_work.items() if step.time > limit}
        blocked = _blocked_times(tree) if slow else {}
        reason_by_number.update(
            {
                step.number: "slow"
                for index, step in slow.items()
                if step.time - blocked.get(index, 0.0) > limit
            }
        )
    return reason_by_number


def _blocked_times(tree: Tree) -> dict[int, float]:
    """Return the microseconds that launches wait for full queues, by index of the step."""
    times: dict[int, float] = defaultdict(float)
    for call, release in launch_queues(tree).releases.items():
        times[int(tree.step[call])] += (release.time - int(tree.trace.columns["start"][call])) / US
    return times


def select_typical_steps(tree: Tree) -> list[TraceStep]:
    """Return the complete steps used for statistics."""
    excluded = excluded_steps(tree)
    return [step for step in tree.steps if step.complete and step.number not in excluded]


def build_replayer(tree: Tree) -> Replayer:
    """Return a trace prepared for replays: with its waits and the delays of its device."""
    view = host_view(tree)
    recording = RecordedTrace(view, device_orders(tree), device_work(view))
    return Replayer(recording, excluded_steps(tree))
