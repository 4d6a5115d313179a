"""What device work waited for: its stream, its launch, and other streams."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from irgraph.capture.kineto.events.syncs import ByStream, launched_by_stream, recorded_syncs
from irgraph.capture.kineto.events.tree import Tree
from irgraph.capture.kineto.reading.clean import MICROSECOND
from irgraph.capture.kineto.reading.trace import EventKind, Integers, KinetoTrace


class StartCause(NamedTuple):
    """Why a device event started when it did; times in nanoseconds.

    Attributes:
        before: the event before it on its stream, -1 for none.
        across: events of other streams that held it up.
        queued: whether it waited for those, not for its launch.
        delay: from the start of its launch, or from the end of what held it up, to its start.
    """

    previous: int
    awaited: tuple[int, ...]
    queued: bool
    delay: int


@dataclass(slots=True)
class Orders:
    """What held up each device event.

    Attributes:
        starts: by row.
        latency: by runtime function, the median delay after a launch where the device was idle.
        gap: the median delay after other work of the stream.
    """

    starts: dict[int, StartCause] = field(default_factory=dict)
    latency: dict[str, float] = field(default_factory=dict)
    gap: float = 1000.0


def stream_of(trace: KinetoTrace, row: int) -> tuple[int, int]:
    """Return (device, stream) of a device event."""
    return int(trace.columns["device"][row]), int(trace.columns["stream"][row])


def device_orders(tree: Tree) -> Orders:
    """Return what each device event waited for.

    Work of one stream follows in order, and after what the stream was made to wait for, as the
    profiler recorded it. Where such records are missing (they are, by default), a wait is inferred:
    work launched after a ``StreamWaitEvent`` call waits for the last work of another stream that
    was launched before that call and had ended, where that ended later than all else it is known
    to wait for.
    """
    trace = tree.trace
    rows = np.flatnonzero(trace.on_device)
    rows = rows[np.argsort(trace.columns["start"][rows], kind="stable")]
    previous: dict[int, int] = {}
    last: dict[tuple[int, int], int] = {}
    streams = (trace.columns[column][rows].tolist() for column in ("device", "stream"))
    for row, stream in zip(rows.tolist(), zip(*streams, strict=True), strict=True):
        previous[row] = last.get(stream, -1)
        last[stream] = row
    launches = _launches(tree, rows)
    orders = Orders(latency=_latencies(launches))
    awaited = _awaited_by_row(tree, rows)
    ends = {launch.row: launch.end for launch in launches}
    for launch in launches:
        predecessors = (previous[launch.row], awaited.get(launch.row, ()))
        orders.starts[launch.row] = _start_cause(launch, *predecessors, ends, orders.latency)
    gaps = [
        s.delay for s in orders.starts.values() if s.queued and s.previous >= 0 and not s.awaited
    ]
    if gaps:
        orders.gap = float(np.median(gaps))
    return orders


class _Launch(NamedTuple):
    """Device work, when it ran, and when what launched it began (-1: nothing is known to)."""

    row: int
    start: int
    end: int
    launch_start: int
    function: str


def _launches(tree: Tree, rows: Integers) -> list[_Launch]:
    """Return device work with its launches, in the order of the rows."""
    trace = tree.trace
    start, launch = trace.columns["start"], tree.launch[rows]
    ends = start[rows] + trace.columns["duration"][rows]
    launch_starts = np.where(launch >= 0, start[launch], -1)
    functions = (trace.names[name] for name in trace.columns["name"][launch].tolist())
    figures = (column.tolist() for column in (rows, start[rows], ends, launch_starts))
    return [_Launch(*row) for row in zip(*figures, functions, strict=True)]


def _latencies(launches: Sequence[_Launch]) -> dict[str, float]:
    """Return by runtime function the median delay of work launched to an idle device."""
    idle_delays: dict[str, list[int]] = defaultdict(list)
    all_delays: dict[str, list[int]] = defaultdict(list)
    busy_until = -(1 << 62)
    for _, start, end, launch_start, function in launches:
        if launch_start >= 0:
            all_delays[function].append(start - launch_start)
            if busy_until <= launch_start:
                idle_delays[function].append(start - launch_start)
        busy_until = max(busy_until, end)
    return {
        name: _typical_latency(idle_delays[name], delays) for name, delays in all_delays.items()
    }


MAX_IDLE_LATENCY = 15_000
"""Nanoseconds from a launch to its work on an idle device that are not exceeded: published
launch latencies are 3 to 12 us, and medians of recorded traces 7 to 26."""


def _typical_latency(idle_delays: list[int], all_delays: list[int]) -> float:
    """Return the latency of a function's launches: what few of them show is not believed."""
    if len(idle_delays) >= 3:
        return float(np.median(idle_delays))
    return min(float(np.quantile(all_delays, 0.05)), MAX_IDLE_LATENCY)


def _start_cause(
    launch: _Launch,
    previous: int,
    awaited: tuple[int, ...],
    ends: Mapping[int, int],
    latency: Mapping[str, float],
) -> StartCause:
    if launch.launch_start < 0:
        return StartCause(previous, (), True, 0)
    ready = launch.launch_start + latency[launch.function]
    blockers = [r for r in (previous, *awaited) if r >= 0 and ends[r] > ready]
    if not blockers:
        return StartCause(previous, (), False, launch.start - launch.launch_start)
    last = max(blockers, key=lambda r: ends[r])
    return StartCause(
        previous, () if last == previous else (last,), True, launch.start - ends[last]
    )


def _awaited_by_row(tree: Tree, rows: Integers) -> dict[int, tuple[int, ...]]:
    """Return by row the work of other streams that it waited for: as recorded, else inferred."""
    trace = tree.trace
    recorded = recorded_syncs(tree).streams
    is_wait = np.array(["StreamWaitEvent" in name for name in trace.names], bool)
    calls = is_wait[trace.columns["name"]] & (trace.columns["kind"] == EventKind.RUNTIME)
    waits: list[int] = np.sort(trace.columns["start"][calls]).tolist()
    if not waits and not recorded:
        return {}
    by_stream = launched_by_stream(tree, rows)
    awaited_by_row = {}
    for stream, (launches, events) in by_stream.items():
        stream_waits = recorded.get(stream, [])
        times = [time for time, _ in stream_waits] if recorded else waits
        previous = -1
        for launch_time, row in zip(launches, events, strict=True):
            end = bisect_left(times, launch_time)
            first = bisect_right(times, previous)
            if end > first and recorded:
                awaited_by_row[row] = tuple(awaited for _, awaited in stream_waits[first:end])
            elif end > first:
                awaited_by_row[row] = _inferred_waits(tree, row, times[end - 1], stream, by_stream)
            previous = launch_time
    return awaited_by_row


def _inferred_waits(
    tree: Tree, row: int, wait: int, stream: tuple[int, int], by_stream: ByStream
) -> tuple[int, ...]:
    """Return the work of other streams that may have been awaited: it was done by then."""
    start, ends = int(tree.trace.columns["start"][row]), tree.trace.columns
    rows = []
    for other, (launches, events) in by_stream.items():
        if other == stream or other[0] != stream[0]:
            continue
        position = bisect_left(launches, wait) - 1
        while position >= 0:
            event = events[position]
            if int(ends["start"][event] + ends["duration"][event]) <= start + MICROSECOND:
                rows.append(event)
                break
            position -= 1
    return tuple(rows)
