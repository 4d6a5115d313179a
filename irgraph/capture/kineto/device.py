"""What device work waited for: its stream, its launch, and other streams."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from irgraph.capture.kineto.clean import MICROSECOND
from irgraph.capture.kineto.trace import Kind, KinetoTrace
from irgraph.capture.kineto.tree import Tree


@dataclass(frozen=True, slots=True)
class Start:
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
        latency: by runtime function, the median delay behind a launch where the device was idle.
        gap: the median delay behind other work of the stream.
    """

    starts: dict[int, Start] = field(default_factory=dict)
    latency: dict[str, float] = field(default_factory=dict)
    gap: float = 1000.0


def stream_of(trace: KinetoTrace, row: int) -> tuple[int, int]:
    """Return (device, stream) of a device event."""
    return int(trace.columns["device"][row]), int(trace.columns["stream"][row])


def device_orders(tree: Tree) -> Orders:
    """Return what each device event waited for.

    Work of one stream follows in order. Where records of event waits are missing (they are, by
    default), a wait is inferred: work launched behind a ``StreamWaitEvent`` call waits for the last
    work of another stream that was launched before that call and had ended, where that ended later
    than all else it is known to wait for.
    """
    trace = tree.trace
    rows = np.flatnonzero(trace.on_device)
    rows = rows[np.argsort(trace.columns["start"][rows], kind="stable")]
    before: dict[int, int] = {}
    last: dict[tuple[int, int], int] = {}
    for row in rows.tolist():
        stream = stream_of(trace, row)
        before[row] = last.get(stream, -1)
        last[stream] = row
    orders = Orders(latency=_latencies(tree, rows.tolist()))
    across = _across(tree, rows.tolist())
    for row in rows.tolist():
        orders.starts[row] = _start(tree, row, before[row], across.get(row, ()), orders.latency)
    gaps = [s.delay for s in orders.starts.values() if s.queued and s.before >= 0 and not s.across]
    if gaps:
        orders.gap = float(np.median(gaps))
    return orders


def _latencies(tree: Tree, rows: list[int]) -> dict[str, float]:
    """Return by runtime function the median delay of work launched to an idle device."""
    trace = tree.trace
    found: dict[str, list[int]] = defaultdict(list)
    every: dict[str, list[int]] = defaultdict(list)
    done = -(1 << 62)
    for row in rows:
        start, launch = int(trace.columns["start"][row]), int(tree.launch[row])
        if launch >= 0:
            begun = int(trace.columns["start"][launch])
            every[trace.text(launch)].append(start - begun)
            if done <= begun:
                found[trace.text(launch)].append(start - begun)
        done = max(done, start + int(trace.columns["duration"][row]))
    return {name: _usual(found[name], delays) for name, delays in every.items()}


def _usual(idle: list[int], every: list[int]) -> float:
    return float(np.median(idle)) if len(idle) >= 3 else float(np.quantile(every, 0.05))


def _start(
    tree: Tree, row: int, before: int, across: tuple[int, ...], latency: Mapping[str, float]
) -> Start:
    trace = tree.trace
    start, launch = int(trace.columns["start"][row]), int(tree.launch[row])
    if launch < 0:
        return Start(before, (), True, 0)
    begun = int(trace.columns["start"][launch])
    ready = begun + latency[trace.text(launch)]
    known = [r for r in (before, *across) if r >= 0 and _end(trace, r) > ready]
    if not known:
        return Start(before, (), False, start - begun)
    last = max(known, key=lambda r: _end(trace, r))
    return Start(before, () if last == before else (last,), True, start - _end(trace, last))


def _end(trace: KinetoTrace, row: int) -> int:
    return int(trace.columns["start"][row]) + int(trace.columns["duration"][row])


def _across(tree: Tree, rows: list[int]) -> dict[int, tuple[int, ...]]:
    trace = tree.trace
    waits = sorted(
        int(trace.columns["start"][row])
        for row in trace.rows(Kind.RUNTIME)
        if "StreamWaitEvent" in trace.text(row)
    )
    if not waits:
        return {}
    by_stream = _launched(tree, rows)
    found = {}
    for stream, (launches, events) in by_stream.items():
        previous = -1
        for launched, row in zip(launches, events, strict=True):
            at = bisect_left(waits, launched) - 1
            if at >= 0 and waits[at] > previous:
                found[row] = _awaited(tree, row, waits[at], stream, by_stream)
            previous = launched
    return found


_ByStream = Mapping[tuple[int, int], tuple[list[int], list[int]]]


def _launched(tree: Tree, rows: list[int]) -> _ByStream:
    """Return launch times and rows by stream, in order of launch; orphans are left out."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    starts = tree.trace.columns["start"]
    for row in rows:
        if tree.launch[row] >= 0:
            found[stream_of(tree.trace, row)].append((int(starts[tree.launch[row]]), row))
    return {s: ([t for t, _ in sorted(p)], [r for _, r in sorted(p)]) for s, p in found.items()}


def _awaited(
    tree: Tree, row: int, wait: int, stream: tuple[int, int], by_stream: _ByStream
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
