"""Chrome's trace event format, as Perfetto reads it.

Perfetto truncates times to nanoseconds, requires slices of a track to nest, treats track 0 as
idle, and drops flows with unreadable numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Event = dict[str, Any]


class Track(NamedTuple):
    """Position of events in the trace: a process and one of its threads, numbered from 1."""

    pid: int
    tid: int

    def fields(self) -> Event:
        """Return the fields of an event that name the track."""
        return {"pid": self.pid, "tid": self.tid}


def microseconds(nanoseconds: int) -> float:
    """Return the microseconds that Perfetto reads as these nanoseconds."""
    time = nanoseconds / 1000.0
    return time if int(time * 1000.0) == nanoseconds else math.nextafter(time, math.inf)


def slice_event(
    track: Track, name: str, start: float, end: float, facts: Mapping[str, Any], category: str = ""
) -> Event:
    """Return a slice from ``start`` to ``end`` microseconds."""
    first, last = round(start * 1000.0), round(end * 1000.0)
    times = {"ts": microseconds(first), "dur": microseconds(max(0, last - first))}
    event = {"ph": "X", **track.fields(), "name": name, **times, "args": facts}
    return {**event, "cat": category} if category else event


def flow_events(number: int, source: Track, start: float, target: Track, end: float) -> list[Event]:
    """Return an arrow from the slice of a launch to the slice of its work; microseconds."""
    common = {"name": "launch", "cat": "launch", "id": number}
    times = [microseconds(round(time * 1000.0)) for time in (start, end)]
    return [
        {"ph": "s", **source.fields(), **common, "ts": times[0]},
        {"ph": "f", "bp": "e", **target.fields(), **common, "ts": times[1]},
    ]


def counter_events(process: int, name: str, changes: Mapping[float, int]) -> Iterator[Event]:
    """Yield a counter's values at the times, in microseconds, at which it changes."""
    value = 0
    for time, change in sorted(changes.items()):
        value += change
        if change:
            timestamp = microseconds(round(time * 1000.0))
            yield {"ph": "C", "pid": process, "name": name, "ts": timestamp, "args": {name: value}}


def track_names(track: Track, process: str, thread: str) -> Iterator[Event]:
    """Yield the events that name a track and set its position."""
    for kind, facts in (
        ("process_name", {"name": process}),
        ("thread_name", {"name": thread}),
        ("process_sort_index", {"sort_index": track.pid}),
        ("thread_sort_index", {"sort_index": track.tid}),
    ):
        yield {"ph": "M", **track.fields(), "name": kind, "args": facts}
