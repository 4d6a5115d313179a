"""Waits of device work: for its stream, its launch, and other streams."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from irgraph.capture.kineto.events.syncs import ByStream, launched_by_stream, recorded_syncs
from irgraph.capture.kineto.events.tree import Tree
from irgraph.capture.kineto.reading.repair import MICROSECOND
from irgraph.capture.kineto.reading.trace import EventKind, Integers, KinetoTrace


class StartCause(NamedTuple):
    """Cause of the start time of a device event; times in nanoseconds.

    Attributes:
        previous: row of the previous event on its stream, -1 for none.
        awaited: rows of the events of other streams that delayed it.
        queued: whether it waited for those events rather than for its launch.
        delay: time to its start, from the start of its launch or from the end of the event that
            delayed it.
    """

    previous: int
    awaited: tuple[int, ...]
    queued: bool
    delay: int


@dataclass(slots=True)
class Orders:
    """Causes of the start times of device events.

    Attributes:
        starts: cause by row.
        latency: median nanoseconds from a launch to its work on an idle device, by runtime
            function.
        gap: median nanoseconds from the end of earlier work of the stream to the next start.
    """

    starts: dict[int, StartCause] = field(default_factory=dict)
    latency: dict[str, float] = field(default_factory=dict)
    gap: float = 1000.0


def stream_of(trace: KinetoTrace, row: int) -> tuple[int, int]:
    """Return (device, stream) of a device event."""
    return int(trace.columns["device"][row]), int(trace.columns["stream"][row])


def device_orders(tree: Tree) -> Orders:
    """Return the event that each device event waited for.

    The work of one stream runs in order, and after the events that the stream was made to wait
    for, as recorded by the profiler. If such records are missing (as they are by default), a wait
    is inferred: work launched after a ``StreamWaitEvent`` call waits for the last work of another
    stream that was launched before that call and had ended, if it ended later than everything else
    that the work is known to wait for.
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
    """Device work with its times, and the start of its launch (-1 if it has none)."""

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
    """Return the median delay of work launched to an idle device, by runtime function."""
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
"""Maximum nanoseconds from a launch to its work on an idle device: published launch latencies are
3 to 12 us, and medians of recorded traces 7 to 26."""


def _typical_latency(idle_delays: list[int], all_delays: list[int]) -> float:
    """Return the launch latency of a function in nanoseconds.

    The median of launches to an idle device, or a low quantile of all launches if fewer than three
    found it idle.
    """
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
    """Return the work of other streams awaited by each row: as recorded, else as inferred."""
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
    """Return the last work of each other stream that may have been awaited, as it had ended."""
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
