"""A recorded step as trace events, for display next to a predicted or simulated one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from irgraph.capture.kineto.events.device import stream_of
from irgraph.capture.kineto.events.host import operand_shapes
from irgraph.capture.kineto.events.steps import TraceStep
from irgraph.capture.kineto.events.tree import PHASES, Tree
from irgraph.capture.kineto.reading.trace import EventKind, Integers
from irgraph.schedule.trace_format import (
    Event,
    Track,
    counter_events,
    flow_events,
    slice_event,
    track_names,
)

US = 1000.0
HOST = (EventKind.OP, EventKind.ANNOTATION, EventKind.RUNTIME)


class RecordedStep(Struct, frozen=True):
    """One step of a trace: its calls on every thread, its work on every stream, as measured."""

    tree: Tree
    step: TraceStep

    def trace_events(self, name: str = "measured", first: int = 0) -> dict[str, Any]:
        """Return the step as trace events; ``name`` and ``first`` as in ``perfetto``."""
        step_events = _StepEvents(self.tree, self.step, name, first)
        facts = {
            "device": self.tree.trace.device_name,
            "source": self.tree.trace.source,
            "step": self.step.number,
            "step_time_us": self.step.time,
        }
        events = [
            *step_events.names(),
            *step_events.calls(),
            *step_events.work(),
            *step_events.arrows(),
        ]
        return {
            "traceEvents": [*events, *step_events.counters()],
            "displayTimeUnit": "ms",
            "otherData": facts,
        }

    def slices(self, name: str = "measured") -> Iterator[Event]:
        """Yield the events of ``trace_events`` that are names of tracks and slices on them."""
        step_events = _StepEvents(self.tree, self.step, name, 0)
        yield from (*step_events.names(), *step_events.calls(), *step_events.work())


class _StepEvents:
    """The events of a recorded step, host threads first, then streams."""

    def __init__(self, tree: Tree, step: TraceStep, name: str, first: int) -> None:
        self.tree, self.step, self.name, self.first = tree, step, name, first
        columns = tree.trace.columns
        started = (columns["start"] >= step.start) & (columns["start"] < step.end)
        self.hosts: Integers = np.flatnonzero(started & np.isin(columns["kind"], HOST))
        launched = np.isin(tree.launch, self.hosts) & (tree.launch >= 0)
        self.works: Integers = np.flatnonzero(tree.trace.on_device & (started | launched))
        self.tracks: dict[tuple[str, str], Track] = {}
        self.processes: dict[str, int] = {}
        self.track_of_row = {row: self._track(*self._thread(row)) for row in self.hosts.tolist()}
        self.track_of_row |= {row: self._track(*self._stream(row)) for row in self.works.tolist()}
        self.ends = self._nested_ends()

    def names(self) -> Iterator[Event]:
        for (process, thread), track in self.tracks.items():
            yield from track_names(track, f"{self.name}: {process}", thread)

    def calls(self) -> Iterator[Event]:
        for row in self.hosts.tolist():
            yield self._slice(row, self._call_facts(row))

    def work(self) -> Iterator[Event]:
        for row in self.works.tolist():
            op = int(self.tree.op[row])
            facts = {"op": self.tree.trace.text(op), **self._call_facts(op)} if op >= 0 else {}
            yield self._slice(row, {**facts, "by": "measured"})

    def arrows(self) -> Iterator[Event]:
        for row in self.works.tolist():
            launch = int(self.tree.launch[row])
            if launch in self.track_of_row:
                ends = (
                    self.track_of_row[launch],
                    self._start_us(launch),
                    self.track_of_row[row],
                    self._start_us(row),
                )
                yield from flow_events((self.first << 32) + row, *ends)

    def counters(self) -> Iterator[Event]:
        running: dict[int, Counter[float]] = {}
        for row in self.works.tolist():
            changes = running.setdefault(self.track_of_row[row].pid, Counter())
            changes[self._start_us(row)] += 1
            changes[(self.ends[row] - self.step.start) / US] -= 1
        for process, changes in running.items():
            yield from counter_events(process, "kernels running", changes)

    def _nested_ends(self) -> dict[int, int]:
        """Return the end of each event, cut if it partly overlaps the next one."""
        columns = self.tree.trace.columns
        ends = {row: int(self.tree.end[row]) for row in self.hosts.tolist()}
        for row in self.works.tolist():
            ends[row] = int(columns["start"][row]) + int(columns["duration"][row])
        open_rows: dict[Track, list[int]] = {}
        for row, track in self.track_of_row.items():
            outer = open_rows.setdefault(track, [])
            while outer and ends[outer[-1]] < ends[row]:
                inner = outer.pop()
                ends[inner] = min(ends[inner], int(columns["start"][row]))
            outer.append(row)
        return ends

    def _slice(self, row: int, facts: dict[str, Any]) -> Event:
        end = (self.ends[row] - self.step.start) / US
        return slice_event(
            self.track_of_row[row], self.tree.trace.text(row), self._start_us(row), end, facts
        )

    def _start_us(self, row: int) -> float:
        return (int(self.tree.trace.columns["start"][row]) - self.step.start) / US

    def _call_facts(self, row: int) -> dict[str, Any]:
        trace, module = self.tree.trace, int(self.tree.module[row])
        facts = {
            "module": self.tree.modules[module] if module >= 0 else "",
            "phase": PHASES[int(self.tree.phase[row])],
            "operands": operand_shapes(*trace.shapes[int(trace.columns["shape"][row])]),
        }
        return {key: value for key, value in facts.items() if value}

    def _thread(self, row: int) -> tuple[str, str]:
        thread = int(self.tree.trace.columns["thread"][row])
        role = "backward" if thread in self.tree.backward else f"thread {thread}"
        return "host", "main" if thread == self.tree.main else role

    def _stream(self, row: int) -> tuple[str, str]:
        device, stream = stream_of(self.tree.trace, row)
        return f"gpu{max(device, 0)}", f"stream{stream}"

    def _track(self, process: str, thread: str) -> Track:
        pid = self.processes.setdefault(process, self.first + len(self.processes) + 1)
        number = self.first + len(self.tracks) + 1
        return self.tracks.setdefault((process, thread), Track(pid, number))
