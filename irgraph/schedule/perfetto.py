"""A timeline as a file for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from irgraph.files import write_atomic
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.schedule.critical_path import CriticalPath, critical_path
from irgraph.schedule.intervals import CAUSES
from irgraph.schedule.timeline import Interval, Timeline
from irgraph.schedule.trace_format import (
    Event,
    Track,
    counter_events,
    flow_events,
    slice_event,
    track_names,
)

PROCESSES = 1000
"""Track numbers reserved for each timeline if several share a file."""


class Part(Protocol):
    """A group of tracks in a file, such as a recorded step."""

    def trace_events(self, name: str, first: int) -> dict[str, Any]:
        """Return its trace, as ``trace_events`` does."""


def write_timeline(timeline: Timeline, path: str | Path) -> None:
    """Write a timeline in Chrome's trace event format, whole or not at all.

    Tracks: the critical path; each host thread with its operations and what they spend their time
    on; each device stream with its kernels; counters of launches that wait for the device and of
    kernels that run. Arrows lead from launches to kernels. Slices on the critical path also have
    the category ``critical path`` (Perfetto ignores colours in the file).
    """
    write_atomic(path, msgspec.json.encode(trace_events(timeline)))


def write_side_by_side(parts: Mapping[str, Timeline | Part], path: str | Path) -> None:
    """Write several timelines or recorded steps, by name, as tracks of one file.

    For predicted and measured, or before and after; all start at zero.
    """
    events: list[Event] = []
    facts = {}
    for number, (name, part) in enumerate(parts.items()):
        first = PROCESSES * number
        if isinstance(part, Timeline):
            trace = trace_events(part, name, first)
        else:
            trace = part.trace_events(name, first)
        events += trace["traceEvents"]
        facts[name] = trace["otherData"]
    document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}
    write_atomic(path, msgspec.json.encode(document))


def trace_events(timeline: Timeline, name: str = "", first: int = 0) -> dict[str, Any]:
    """Return a timeline as a trace: times in microseconds, facts about operations in ``args``.

    ``name`` is a prefix of the names of its tracks, whose numbers start at ``first``.
    """
    chain = critical_path(timeline)
    tracks = _Tracks(timeline, chain, name, first)
    facts = {
        "device": timeline.device,
        "host": timeline.host,
        "accounting": timeline.accounting,
        "step_time_us": timeline.step_time,
        "gpu_active_us": timeline.active_time,
        "critical_path_us": chain.by_cause(),
    }
    events = [*tracks.names(), *tracks.path(chain), *tracks.ops(), *tracks.intervals()]
    return {
        "traceEvents": [*events, *tracks.arrows(), *tracks.counters()],
        "displayTimeUnit": "ms",
        "otherData": facts,
    }


class _Tracks:
    """The events of a timeline: a process for each kind of resource, a thread for each one."""

    def __init__(self, timeline: Timeline, chain: CriticalPath, name: str, first: int) -> None:
        self.timeline = timeline
        self.name = name
        self.first = first
        kinds = list(dict.fromkeys(r.kind for r in timeline.resources))
        self.path_track = Track(first + 1, first + 1)
        self.track_of_resource = [
            Track(first + 2 + kinds.index(resource.kind), first + 2 + number)
            for number, resource in enumerate(timeline.resources)
        ]
        self.critical = set(chain.chain.tolist())

    def names(self) -> Iterator[Event]:
        tracks = [(self.path_track, "critical path", "critical path")]
        resources = zip(self.track_of_resource, self.timeline.resources, strict=True)
        tracks += [(track, resource.kind, resource.name) for track, resource in resources]
        for track, kind, thread in tracks:
            process = f"{self.name}: {kind}" if self.name else kind
            yield from track_names(track, process, thread)

    def path(self, chain: CriticalPath) -> Iterator[Event]:
        for i in chain.intervals:
            yield slice_event(self.path_track, i.label, i.start, i.end, _facts(i))

    def ops(self) -> Iterator[Event]:
        """Yield a slice for each operation on its host thread, without the T1 before it."""
        spans: dict[tuple[int, Op], tuple[Op, float, float]] = {}
        for i in self.timeline.intervals:
            if i.op is not None and i.cause != "T1" and self.timeline.on_host(i):
                key = (i.resource, i.op)
                start = spans[key][1] if key in spans else self.timeline.ready(i)
                spans[key] = (i.op, start, i.end)
        for (resource, _), (op, start, end) in spans.items():
            yield slice_event(self.track_of_resource[resource], op.name, start, end, _op_facts(op))

    def intervals(self) -> Iterator[Event]:
        for number, i in enumerate(self.timeline.intervals):
            track = self.track_of_resource[i.resource]
            mark = "critical path" if number in self.critical else ""
            if i.cause == "kernel" and i.kernel is not None:
                yield slice_event(track, i.kernel.name, i.start, i.end, _facts(i), mark)
            elif self.timeline.on_host(i):
                start = self.timeline.ready(i)
                yield slice_event(track, i.cause, start, i.end, _facts(i), mark)

    def arrows(self) -> Iterator[Event]:
        launches: dict[tuple[Op | None, int], list[Interval]] = defaultdict(list)
        for i in self.timeline.intervals:
            if i.cause == "T4" and i.kernel is not None:
                launches[i.op, id(i.kernel)].append(i)
        for number, i in enumerate(self.timeline.intervals):
            op_launches = launches.get((i.op, id(i.kernel))) if i.cause == "kernel" else None
            if op_launches:
                launch = op_launches.pop(0)
                tracks = (
                    self.track_of_resource[launch.resource],
                    self.track_of_resource[i.resource],
                )
                identity = (self.first << 32) + number
                yield from flow_events(identity, tracks[0], launch.start, tracks[1], i.start)

    def counters(self) -> Iterator[Event]:
        """Yield, for each device, counters of launches that wait for it and of running kernels."""
        waiting: dict[int, Counter[float]] = defaultdict(Counter)
        running: dict[int, Counter[float]] = defaultdict(Counter)
        ends = self.timeline.columns.end
        for i in self.timeline.intervals:
            if i.cause == "kernel":
                process = self.track_of_resource[i.resource].pid
                launch = [p for p in i.after if self._is_launch(p)]
                if launch:
                    waiting[process][float(ends[launch[-1]])] += 1
                    waiting[process][i.start] -= 1
                running[process][i.start] += 1
                running[process][i.end] -= 1
        for name, changes_by_process in (
            ("launches waiting", waiting),
            ("kernels running", running),
        ):
            for process, changes in changes_by_process.items():
                yield from counter_events(process, name, changes)

    def _is_launch(self, position: int) -> bool:
        tasks = self.timeline.columns.tasks
        return tasks.causes[tasks.cause[position]] in ("T4", "latency")


def _facts(interval: Interval) -> dict[str, Any]:
    facts: dict[str, Any] = {"cause": CAUSES[interval.cause]}
    if interval.op is not None:
        facts["op"] = interval.op.name
        facts.update(_op_facts(interval.op))
    if interval.kernel is not None:
        facts.update(_kernel_facts(interval.kernel))
    return facts


def _op_facts(op: Op) -> dict[str, Any]:
    shapes = {f"%{t.name}": f"{t.dtype}{[int(n) for n in t.shape]}" for t in op.inputs}
    facts = {"module": op.module, "phase": op.phase, "from": op.origin, "operands": shapes}
    return {key: value for key, value in facts.items() if value}


def _kernel_facts(kernel: Kernel) -> dict[str, Any]:
    return {
        "kernel": kernel.name,
        "family": kernel.family,
        "by": kernel.by,
        "spread_us": kernel.spread,
        "outside_range": kernel.outside,
        "formula": kernel.formula,
    }
