"""Read a Kineto trace, whatever its age and state of repair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from irgraph import gc_pause
from irgraph.capture.common.source import Source
from irgraph.capture.kineto.reading.clean import clean, leave_out_later_work
from irgraph.capture.kineto.reading.collect import CATEGORIES, Collector
from irgraph.capture.kineto.reading.columns import Columns
from irgraph.capture.kineto.reading.container import blocks
from irgraph.capture.kineto.reading.events import EventReader
from irgraph.capture.kineto.reading.health import Health
from irgraph.capture.kineto.reading.missing import say_missing_records
from irgraph.capture.kineto.reading.selection import EVERYTHING, Selection, Window, choose_window
from irgraph.capture.kineto.reading.trace import (
    COLUMNS,
    Array,
    Kind,
    KinetoTrace,
    MemoryChange,
)
from irgraph.diagnostics import SourceSpan, fail

_LABELS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)", "## ", "[param|", "[pytorch|")
_MICROSECONDS_SINCE_1970 = 10**17
"""Whole times above this count nanoseconds since 1970, those below microseconds."""

_DAY = 24 * 3600 * 10**6
"""In microseconds: what lies further back than this belongs to no trace."""

_YEAR = 365 * _DAY
"""From the time that a file counts from: torch takes one of the last months."""


def read_kineto(
    path: str | Path | Source,
    *,
    strict: bool = False,
    selection: Selection = EVERYTHING,
    progress: Callable[[int], None] | None = None,
) -> KinetoTrace:
    """Read a trace from a file: JSON, gzip or zip, recognised by content; ``-`` is standard input.

    Args:
        path: the file.
        strict: refuse a trace that needs a repair.
        selection: the steps and categories to read, and the memory to keep to.
        progress: called now and then with the number of events read so far.

    Raises:
        IrgraphError: the file holds no usable Kineto trace, or needs repairs and ``strict``
            is set (exit code 4).
    """
    health = Health(str(path))
    pieces = EventReader(health)
    window = choose_window(path, selection, health)
    collector = Collector(health, selection.skip, window)
    with gc_pause.gc_paused():
        for events in pieces.read(blocks(path, health)):
            collector.add(events)
            if progress is not None:
                progress(pieces.events)
        collector.finish()
    if not collector.columns.rows:
        raise fail(
            "the trace holds no complete event",
            SourceSpan(str(path)),
            hint="was anything run while the profiler was on?",
        )
    trace = _assemble(collector, health, {**_object(pieces.header), **_trailer(pieces.trailer)})
    if window is not None:
        leave_out_later_work(trace, _end_of(window, collector, trace))
    clean(trace, collector.flows)
    if window is None or collector.indices:
        say_missing_records(trace, collector.indices)
    if strict:
        health.demand_clean()
    return trace


def _end_of(window: Window, collector: Collector, trace: KinetoTrace) -> int:
    """Return the end of a window in nanoseconds from the start of the trace."""
    unit = 1000 if collector.nanoseconds else 1
    return window.end // unit - trace.base


def _assemble(collector: Collector, health: Health, header: dict[str, Any]) -> KinetoTrace:
    found = collector.columns
    start, duration = (found.take(key).astype("i8", copy=False) for key in ("start", "duration"))
    base = _base(found, start)
    nanoseconds = collector.nanoseconds = _unit_is_nanoseconds(
        collector, base, duration, header, health
    )
    columns = {
        "start": _scaled(found, start, base, nanoseconds),
        "duration": _scaled(found, duration, 0, nanoseconds),
    }
    for key in COLUMNS:
        if key not in columns and key != "kind":
            columns[key] = found.take(key)
    collector.flows = [
        (number, begins, thread, (at - base) * (1 if nanoseconds else 1000))
        for number, begins, thread, at in collector.flows
    ]
    memory = _memory(collector, base, nanoseconds)
    columns["kind"] = _kinds(columns, collector, health)
    trace = KinetoTrace(
        health.source,
        columns,
        list(collector.names.table),
        [_thread(*place) for place in collector.threads.table],
        [pair or (b"", b"") for pair in collector.shapes.table],
        list(collector.modules.table),
        list(collector.collectives.table),
        base * (1 if nanoseconds else 1000),
        header,
        {_thread(*place): name for place, name in collector.thread_names.items()},
        health,
        memory=memory,
    )
    _same_thread(trace)
    health.add("K04", sum(not _is_text(part) for pair in trace.shapes for part in pair))
    return trace


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _base(columns: Columns, start: Array) -> int:
    """Return a start time from which all others are counted: the first of the trace."""
    parts = [start[rows] // scale for rows, scale in columns.scaled()]
    starts = parts[0] if len(parts) == 1 else np.concatenate(parts)
    middle = int(np.median(starts))
    window = _DAY * (1000 if middle > _MICROSECONDS_SINCE_1970 else 1)
    return int(starts.min(initial=middle, where=starts >= middle - window))


def _unit_is_nanoseconds(
    collector: Collector, base: int, durations: Array, header: dict[str, Any], health: Health
) -> bool:
    """Decide the unit by magnitude, else by the shortest events; say so where it is unusual."""
    if base > _MICROSECONDS_SINCE_1970:
        health.add("K07", detail="nanoseconds since 1970, by magnitude")
        return True
    if 0 < collector.decimals < collector.whole:
        health.add("K09", collector.decimals, "times with decimals among whole ones")
    elif collector.decimals:
        health.add("K08", detail="microseconds with decimals")
    if collector.decimals >= collector.whole:
        return False
    origin = header.get("baseTimeNanoseconds")
    if isinstance(origin, int) and origin > 0 and min(base, abs(base - origin // 1000)) > _YEAR:
        health.add("K07", detail="nanoseconds: others would lie years after baseTimeNanoseconds")
        return True
    parts = [durations[rows] // scale for rows, scale in collector.columns.scaled()]
    positive = np.concatenate([part[part > 0] for part in parts])
    if base < 10**15 and len(positive) > 50 and np.quantile(positive, 0.02) >= 200:
        health.add("K07", detail="nanoseconds, as no event is shorter than 200")
        return True
    return False


def _memory(collector: Collector, base: int, nanoseconds: bool) -> Array:
    """Return a row for each field of ``MemoryChange``, its columns in order of time."""
    if not collector.memory:
        return np.zeros((len(MemoryChange._fields), 0), "i8")
    unit = 1 if nanoseconds else 1000
    rows = [
        np.stack([threads, (start - base * scale) * unit // scale, *figures])
        for threads, start, scale, figures in collector.memory
    ]
    found = np.concatenate(rows, axis=1)
    return found[:, np.argsort(found[1], kind="stable")]


def _scaled(columns: Columns, values: Array, base: int, nanoseconds: bool) -> Array:
    """Return times in nanoseconds from ``base``, changed in place."""
    limit = (1 << 62) // 1000
    for rows, scale in columns.scaled():
        times = values[rows]
        times -= base * scale
        np.clip(times, -limit, limit, out=times)
        times *= 1 if nanoseconds else 1000
        if scale > 1:
            times //= scale
    return values


def _kinds(columns: dict[str, Array], collector: Collector, health: Health) -> Array:
    """Return kinds by category; unknown categories go by the ids their events have."""
    categories = list(collector.categories.table)
    table = np.array([CATEGORIES.get(c.lower(), 255) for c in categories], "u1")
    kinds = table[collector.columns.categories()]
    old = [c for c in categories if c != c.lower() and c.lower() in CATEGORIES and c != "Trace"]
    health.add("K18", len(old), ", ".join(sorted(old)))
    unknown = kinds == 255
    if unknown.any():
        names = [c for c in categories if c.lower() not in CATEGORIES]
        health.add("K17", int(unknown.sum()), ", ".join(sorted(names)[:6]))
        launched = columns["correlation"] >= 0
        kinds[unknown & launched & (columns["stream"] >= 0)] = Kind.KERNEL
        kinds[unknown & launched & (columns["stream"] < 0)] = Kind.RUNTIME
        kinds[unknown & ~launched] = Kind.OTHER
    labels = [i for i, name in enumerate(collector.names.table) if name.startswith(_LABELS)]
    kinds[(kinds == Kind.OP) & np.isin(columns["name"], labels)] = Kind.ANNOTATION
    buffers = collector.names.table.get("Activity Buffer Request", -1)
    kinds[(columns["name"] == buffers) & (buffers >= 0)] = Kind.OVERHEAD
    health.add("K25", int((kinds == Kind.OVERHEAD).sum()))
    return kinds


def _thread(process: int | str | None, thread: int | str | None) -> tuple[int | str, int | str]:
    """Return a thread's name with numbers that were written as text as numbers."""
    return _plain(process), _plain(thread)


def _plain(value: int | str | None) -> int | str:
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 20:
        return int(value)
    return -1 if value is None else value


def _same_thread(trace: KinetoTrace) -> None:
    """Give threads that differ in spelling alone one number."""
    first: dict[tuple[int | str, int | str], int] = {}
    table = np.array([first.setdefault(t, i) for i, t in enumerate(trace.threads)], "i4")
    trace.columns["thread"] = table[trace.columns["thread"]]
    trace.memory[0] = table[trace.memory[0]]


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _trailer(text: bytes) -> dict[str, Any]:
    rest = text.strip().removeprefix(b",")
    return _object(b"{" + rest) if rest.startswith((b'"', b"\n", b" ", b"\r")) else {}
