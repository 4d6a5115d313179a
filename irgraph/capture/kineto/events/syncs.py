"""Waits of the host and of streams, from the profiler's synchronisation records.

CUPTI records a wait of the host for a stream, an event or the whole device, and of a stream for an
event; an event represents the work of its stream that was launched before it was recorded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from irgraph.capture.kineto.events.tree import Tree
from irgraph.capture.kineto.reading.trace import EventKind, Integers

Stream: TypeAlias = tuple[int, int]
"""Device and stream."""

ByStream: TypeAlias = Mapping[Stream, tuple[list[int], list[int]]]
"""Launch times of a stream's work, and the rows of that work, by stream."""


@dataclass(slots=True)
class Syncs:
    """Recorded waits.

    Attributes:
        host: device event awaited by a runtime call, -1 for none, by the row of the call.
        streams: start of each call that made a stream wait, with the awaited event, by stream.
    """

    host: dict[int, int] = field(default_factory=dict)
    streams: dict[Stream, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))


def launched_by_stream(tree: Tree, rows: Integers) -> ByStream:
    """Return launch times and rows by stream, in order of launch; orphans are omitted."""
    launches: dict[Stream, list[tuple[int, int]]] = defaultdict(list)
    columns = tree.trace.columns
    launched = rows[tree.launch[rows] >= 0]
    launch_starts = columns["start"][tree.launch[launched]]
    selected = (columns["device"][launched], columns["stream"][launched], launch_starts, launched)
    for device, stream, start, row in zip(*(c.tolist() for c in selected), strict=True):
        launches[device, stream].append((start, row))
    return {s: ([t for t, _ in sorted(p)], [r for _, r in sorted(p)]) for s, p in launches.items()}


def recorded_syncs(tree: Tree) -> Syncs:
    """Return the waits recorded in a trace, none if the profiler did not record them."""
    trace = tree.trace
    syncs = Syncs()
    records = np.flatnonzero((trace.columns["kind"] == EventKind.SYNC) & (tree.launch >= 0))
    if not len(records):
        return syncs
    work = launched_by_stream(tree, np.flatnonzero(trace.on_device))
    calls = _call_starts(tree)
    for row in records.tolist():
        _add_sync(syncs, tree, row, work, calls)
    for waits in syncs.streams.values():
        waits.sort()
    return syncs


def _call_starts(tree: Tree) -> dict[int, int]:
    """Return the start times of runtime calls by correlation."""
    columns = tree.trace.columns
    rows = np.flatnonzero((columns["kind"] == EventKind.RUNTIME) & (columns["correlation"] >= 0))
    pairs = (columns["correlation"][rows].tolist(), columns["start"][rows].tolist())
    return dict(zip(*pairs, strict=True))


def _add_sync(syncs: Syncs, tree: Tree, row: int, work: ByStream, calls: Mapping[int, int]) -> None:
    """Add one record; the work it waited for may have been launched before the recording."""
    columns = tree.trace.columns
    call = int(tree.launch[row])
    start, name = int(columns["start"][call]), tree.trace.text(row)
    device, stream = int(columns["device"][row]), int(columns["stream"][row])
    record_time = calls.get(int(columns["wait_record"][row]))
    event = (device, int(columns["wait_stream"][row]))
    if "Wait Event" in name:
        awaited = _last_launched(work, event, record_time)
        if awaited >= 0:
            syncs.streams[device, stream].append((start, awaited))
    elif "Event" in name:
        if record_time is not None and event in work:
            syncs.host[call] = _last_unfinished(
                tree, [_last_launched(work, event, record_time)], start
            )
    elif "Stream" in name:
        syncs.host[call] = _last_unfinished(
            tree, [_last_launched(work, (device, stream), start)], start
        )
    elif "Context" in name:
        candidates = [_last_launched(work, key, start) for key in work if key[0] == device]
        syncs.host[call] = _last_unfinished(tree, candidates, start)


def _last_launched(work: ByStream, stream: Stream, before: int | None) -> int:
    """Return the last work of a stream that was launched before a time, -1 for none."""
    launches, rows = work.get(stream, ([], []))
    position = bisect_left(launches, before) - 1 if before is not None else -1
    return rows[position] if position >= 0 else -1


def _last_unfinished(tree: Tree, rows: list[int], start: int) -> int:
    """Return the row of the work that ended last, -1 if all of it ended before a call started."""
    ends = [(int(tree.trace.end[row]), row) for row in rows if row >= 0]
    end, row = max(ends, default=(start, -1))
    return row if end > start else -1
