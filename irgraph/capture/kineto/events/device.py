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
from irgraph.capture.kineto.reading.trace import Integers, Kind, KinetoTrace


class Start(NamedTuple):
    """Why a device event started when it did; times in nanoseconds.

    Attributes:
        before: the event before it on its stream, -1 for none.
        across: events of other streams that held it up.
        queued: whether it waited for those, not for its launch.
        delay: from the start of its launch, or from the end of what held it up, to its start.
    """

    before: int
    across: tuple[int, ...]
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

    starts: dict[int, Start] = field(default_factory=dict)
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
    before: dict[int, int] = {}
    last: dict[tuple[int, int], int] = {}
    streams = (trace.columns[column][rows].tolist() for column in ("device", "stream"))
    for row, stream in zip(rows.tolist(), zip(*streams, strict=True), strict=True):
        before[row] = last.get(stream, -1)
        last[stream] = row
    launches = _launches(tree, rows)
    orders = Orders(latency=_latencies(launches))
    across = _across(tree, rows)
    ends = {launch.row: launch.end for launch in launches}
    for launch in launches:
        held = (before[launch.row], across.get(launch.row, ()))
        orders.starts[launch.row] = _start(launch, *held, ends, orders.latency)
    gaps = [s.delay for s in orders.starts.values() if s.queued and s.before >= 0 and not s.across]
    if gaps:
        orders.gap = float(np.median(gaps))
    return orders


class _Launch(NamedTuple):
    """Device work, when it ran, and when what launched it began (-1: nothing is known to)."""

    row: int
    start: int
    end: int
    begun: int
    function: str


def _launches(tree: Tree, rows: Integers) -> list[_Launch]:
    """Return device work with its launches, in the order of the rows."""
    trace = tree.trace
    start, launch = trace.columns["start"], tree.launch[rows]
    ends = start[rows] + trace.columns["duration"][rows]
    begun = np.where(launch >= 0, start[launch], -1)
    functions = (trace.names[name] for name in trace.columns["name"][launch].tolist())
    figures = (column.tolist() for column in (rows, start[rows], ends, begun))
    return [_Launch(*row) for row in zip(*figures, functions, strict=True)]


def _latencies(launches: Sequence[_Launch]) -> dict[str, float]:
    """Return by runtime function the median delay of work launched to an idle device."""
    found: dict[str, list[int]] = defaultdict(list)
    every: dict[str, list[int]] = defaultdict(list)
    done = -(1 << 62)
    for _, start, end, begun, function in launches:
        if begun >= 0:
            every[function].append(start - begun)
            if done <= begun:
                found[function].append(start - begun)
        done = max(done, end)
    return {name: _usual(found[name], delays) for name, delays in every.items()}


LATENCY = 15_000
"""Nanoseconds from a launch to its work on an idle device that are not exceeded: published
launch latencies are 3 to 12 us, and medians of recorded traces 7 to 26."""


def _usual(idle: list[int], every: list[int]) -> float:
    """Return the latency of a function's launches: what few of them show is not believed."""
    if len(idle) >= 3:
        return float(np.median(idle))
    return min(float(np.quantile(every, 0.05)), LATENCY)


def _start(
    launch: _Launch,
    before: int,
    across: tuple[int, ...],
    ends: Mapping[int, int],
    latency: Mapping[str, float],
) -> Start:
    if launch.begun < 0:
        return Start(before, (), True, 0)
    ready = launch.begun + latency[launch.function]
    known = [r for r in (before, *across) if r >= 0 and ends[r] > ready]
    if not known:
        return Start(before, (), False, launch.start - launch.begun)
    last = max(known, key=lambda r: ends[r])
    return Start(before, () if last == before else (last,), True, launch.start - ends[last])


def _across(tree: Tree, rows: Integers) -> dict[int, tuple[int, ...]]:
    """Return by row the work of other streams that it waited for: as recorded, else inferred."""
    trace = tree.trace
    recorded = recorded_syncs(tree).streams
    named = np.array(["StreamWaitEvent" in name for name in trace.names], bool)
    calls = named[trace.columns["name"]] & (trace.columns["kind"] == Kind.RUNTIME)
    waits: list[int] = np.sort(trace.columns["start"][calls]).tolist()
    if not waits and not recorded:
        return {}
    by_stream = launched_by_stream(tree, rows)
    found = {}
    for stream, (launches, events) in by_stream.items():
        own = recorded.get(stream, [])
        times = [time for time, _ in own] if recorded else waits
        previous = -1
        for launched, row in zip(launches, events, strict=True):
            at = bisect_left(times, launched)
            first = bisect_right(times, previous)
            if at > first and recorded:
                found[row] = tuple(awaited for _, awaited in own[first:at])
            elif at > first:
                found[row] = _awaited(tree, row, times[at - 1], stream, by_stream)
            previous = launched
    return found


def _awaited(
    tree: Tree, row: int, wait: int, stream: tuple[int, int], by_stream: ByStream
) -> tuple[int, ...]:
    """Return the work of other streams that may have been awaited: it was done by then."""
    start, ends = int(tree.trace.columns["start"][row]), tree.trace.columns
    found = []
    for other, (launches, events) in by_stream.items():
        if other == stream or other[0] != stream[0]:
            continue
        at = bisect_left(launches, wait) - 1
        while at >= 0:
            event = events[at]
            if int(ends["start"][event] + ends["duration"][event]) <= start + MICROSECOND:
                found.append(event)
                break
            at -= 1
    return tuple(found)
