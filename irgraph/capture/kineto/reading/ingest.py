"""Reads Kineto traces of any age and repairs damaged ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from irgraph import gc_pause
from irgraph.capture.common.source import Source
from irgraph.capture.kineto.reading.collect import (
    CATEGORIES,
    MTIA_KINDS,
    MTIA_WORK,
    ROCM_COPY,
    ROCM_FILL,
    SEPARATOR,
    Collector,
    Interner,
)
from irgraph.capture.kineto.reading.columns import Columns
from irgraph.capture.kineto.reading.container import blocks
from irgraph.capture.kineto.reading.events import EventReader
from irgraph.capture.kineto.reading.health import Health
from irgraph.capture.kineto.reading.missing_records import report_missing_records
from irgraph.capture.kineto.reading.processes import split_processes
from irgraph.capture.kineto.reading.repair import clean, drop_later_work
from irgraph.capture.kineto.reading.selection import EVERYTHING, Selection, Window, choose_window
from irgraph.capture.kineto.reading.trace import (
    COLUMNS,
    Array,
    Configuration,
    EventKind,
    KinetoTrace,
    MemoryChange,
)
from irgraph.diagnostics import SourceSpan, fail

_ANNOTATION_PREFIXES = (
    "ProfilerStep#",
    "Optimizer.",
    "enumerate(DataLoader)",
    "## ",
    "[param|",
    "[pytorch|",
)
_MICROSECONDS_SINCE_1970 = 10**17
"""Integer times above this are nanoseconds since 1970, smaller ones microseconds."""

_DAY = 24 * 3600 * 10**6
"""Microseconds in a day: events that start earlier than this before the median are discarded."""

_YEAR = 365 * _DAY
"""Maximum microseconds from a file's base time, which torch sets to one of the last months."""


def read_kineto(
    path: str | Path | Source,
    *,
    strict: bool = False,
    selection: Selection = EVERYTHING,
    progress: Callable[[int], None] | None = None,
) -> KinetoTrace:
    """Read a trace of one process from a file, see ``read_processes``.

    Raises:
        IrgraphError: the file is not a usable Kineto trace, holds several processes that launch
            device work, or needs repairs and ``strict`` is set (exit code 4).
    """
    traces = read_processes(path, strict=strict, selection=selection, progress=progress)
    if len(traces) > 1:
        names = ", ".join(trace.source.rpartition(", ")[2] for trace in traces)
        raise fail(
            f"the trace holds {len(traces)} processes that launch device work: {names}",
            SourceSpan(str(path)),
            hint="analyze, compare, overheads, replay and roofline read each as a rank; keep one "
            "in the file for this command",
        )
    return traces[0]


def read_processes(
    path: str | Path | Source,
    *,
    strict: bool = False,
    selection: Selection = EVERYTHING,
    progress: Callable[[int], None] | None = None,
) -> list[KinetoTrace]:
    """Read the traces of a file, one for each process that launches device work.

    Args:
        path: the file: JSON, gzip or zip, recognised by content; ``-`` is standard input.
        strict: refuse a trace that needs a repair.
        selection: the steps and categories to read, and the memory limit.
        progress: called periodically with the number of events read so far.

    Raises:
        IrgraphError: the file is not a usable Kineto trace, or needs repairs and ``strict``
            is set (exit code 4).
    """
    health = Health(str(path))
    reader = EventReader(health)
    window = choose_window(path, selection, health)
    collector = Collector(health, selection.skip, window)
    with gc_pause.gc_paused():
        for events in reader.read(blocks(path, health)):
            collector.add(events)
            if progress is not None:
                progress(reader.events)
        collector.finish()
    if not collector.columns.rows:
        raise fail(
            "the trace holds no complete event",
            SourceSpan(str(path)),
            hint="was anything run while the profiler was on?",
        )
    header = {**_json_object(reader.header), **_trailer(reader.trailer)}
    traces = split_processes(_assemble(collector, health, header))
    for trace in traces:
        if window is not None:
            drop_later_work(trace, _window_end(window, collector, trace))
        clean(trace, collector.flows)
        # numbers of several processes cover each other's gaps
        if len(traces) == 1 and (window is None or collector.indices):
            report_missing_records(trace, collector.indices)
        if strict:
            trace.health.demand_clean()
    return traces


def _window_end(window: Window, collector: Collector, trace: KinetoTrace) -> int:
    """Return the end of a window in nanoseconds from the start of the trace."""
    unit = 1000 if collector.nanoseconds else 1
    return window.end // unit - trace.base


def _assemble(collector: Collector, health: Health, header: dict[str, Any]) -> KinetoTrace:
    raw_columns = collector.columns
    start, duration = (
        raw_columns.pop(key).astype("i8", copy=False) for key in ("start", "duration")
    )
    base = _base_time(raw_columns, start)
    nanoseconds = collector.nanoseconds = _unit_is_nanoseconds(
        collector, base, duration, header, health
    )
    columns = {
        "start": _to_nanoseconds(raw_columns, start, base, nanoseconds),
        "duration": _to_nanoseconds(raw_columns, duration, 0, nanoseconds),
    }
    for key in COLUMNS:
        if key not in columns and key != "kind":
            columns[key] = raw_columns.pop(key)
    unit = 1 if nanoseconds else 1000
    collector.flows = [
        (number, begins, thread, (time - base * 1000) * unit // 1000)
        for number, begins, thread, time in collector.flows
    ]
    memory = _memory_table(collector, base, nanoseconds)
    shapes, concretes, strides = _split_operands(columns, collector.operands.table)
    columns["kind"] = _kinds(columns, collector, health)
    trace = KinetoTrace(
        health.source,
        columns,
        list(collector.names.table),
        [_thread_key(*place) for place in collector.threads.table],
        [(dims, types) for dims, types in (text.split(SEPARATOR, 1) for text in shapes)],
        list(collector.modules.table),
        list(collector.collectives.table),
        base * (1 if nanoseconds else 1000),
        header,
        {_thread_key(*place): name for place, name in collector.thread_names.items()},
        health,
        concretes=concretes,
        strides=strides,
        configurations=[
            Configuration(*key.split(SEPARATOR, len(Configuration._fields) - 1))
            for key in collector.configurations.table
        ],
        memory=memory,
        has_old_stacks=collector.has_old_stacks,
    )
    _merge_thread_spellings(trace)
    health.add("K04", sum(not _is_text(part) for pair in trace.shapes for part in pair))
    return trace


def _split_operands(columns: dict[str, Array], table: Iterable[bytes]) -> tuple[list[bytes], ...]:
    """Split the numbers of operands' texts into ``shape``, ``concrete`` and ``strides``.

    Return the texts of each: of shapes, dims and types with a separator; types without dims become
    absent.
    """
    shapes, concretes, strides = Interner(), Interner(), Interner()
    parts = [text.split(SEPARATOR, 3) for text in table]
    shape_texts = [dims + SEPARATOR + types if dims else SEPARATOR for dims, types, *_ in parts]
    numbers = {
        "shape": shapes(shape_texts),
        "concrete": concretes([text for _, _, text, _ in parts]),
        "strides": strides([text for *_, text in parts]),
    }
    operands = columns["shape"]
    if len(parts) > 1:
        columns.update({key: values[operands] for key, values in numbers.items()})
    return list(shapes.table), list(concretes.table), list(strides.table)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _base_time(columns: Columns, start: Array) -> int:
    """Return the start time that becomes the origin of all others: the first of the trace."""
    parts = [start[rows] // scale for rows, scale in columns.scaled()]
    starts = parts[0] if len(parts) == 1 else np.concatenate(parts)
    middle = int(np.median(starts))
    window = _DAY * (1000 if middle > _MICROSECONDS_SINCE_1970 else 1)
    return int(starts.min(initial=middle, where=starts >= middle - window))


def _unit_is_nanoseconds(
    collector: Collector, base: int, durations: Array, header: dict[str, Any], health: Health
) -> bool:
    """Return whether times are in nanoseconds, by magnitude or else by the shortest events.

    An unusual unit is noted in the health report.
    """
    if base > _MICROSECONDS_SINCE_1970:
        health.add("K07", detail="nanoseconds since 1970, by magnitude")
        return True
    if 0 < collector.decimals < collector.integers:
        health.add("K09", collector.decimals, "times with decimals among whole ones")
    elif collector.decimals:
        health.add("K08", detail="microseconds with decimals")
    if collector.decimals >= collector.integers:
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


def _memory_table(collector: Collector, base: int, nanoseconds: bool) -> Array:
    """Return a row for each field of ``MemoryChange``, its columns in order of time."""
    if not collector.memory:
        return np.zeros((len(MemoryChange._fields), 0), "i8")
    unit = 1 if nanoseconds else 1000
    rows = [
        np.stack([threads, (start - base * scale) * unit // scale, *figures])
        for threads, start, scale, figures in collector.memory
    ]
    table = np.concatenate(rows, axis=1)
    return table[:, np.argsort(table[1], kind="stable")]


def _to_nanoseconds(columns: Columns, values: Array, base: int, nanoseconds: bool) -> Array:
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
    """Return kinds by category; kinds of unknown categories follow from the ids of their events."""
    categories = list(collector.categories.table)
    table = np.array([CATEGORIES.get(c.lower(), 255) for c in categories], "u1")
    numbers = collector.columns.categories()
    kinds = table[numbers]
    if MTIA_WORK in categories:
        on_mtia = numbers == categories.index(MTIA_WORK)
        for name in MTIA_KINDS.keys() & collector.names.table:
            kinds[on_mtia & (columns["name"] == collector.names.table[name])] = MTIA_KINDS[name]
    for pattern, kind in ((ROCM_COPY, EventKind.MEMCPY), (ROCM_FILL, EventKind.MEMSET)):
        rocm_names = [i for i, n in enumerate(collector.names.table) if pattern.fullmatch(n)]
        if rocm_names:
            kinds[(kinds == EventKind.KERNEL) & np.isin(columns["name"], rocm_names)] = kind
    old_spellings = [
        c for c in categories if c != c.lower() and c.lower() in CATEGORIES and c != "Trace"
    ]
    health.add("K18", len(old_spellings), ", ".join(sorted(old_spellings)))
    unknown = kinds == 255
    if unknown.any():
        names = [c for c in categories if c.lower() not in CATEGORIES]
        health.add("K17", int(unknown.sum()), ", ".join(sorted(names)[:6]))
        launched = columns["correlation"] >= 0
        kinds[unknown & launched & (columns["stream"] >= 0)] = EventKind.KERNEL
        kinds[unknown & launched & (columns["stream"] < 0)] = EventKind.RUNTIME
        kinds[unknown & ~launched] = EventKind.OTHER
    labels = [
        i for i, name in enumerate(collector.names.table) if name.startswith(_ANNOTATION_PREFIXES)
    ]
    kinds[(kinds == EventKind.OP) & np.isin(columns["name"], labels)] = EventKind.ANNOTATION
    buffers = collector.names.table.get("Activity Buffer Request", -1)
    kinds[(columns["name"] == buffers) & (buffers >= 0)] = EventKind.OVERHEAD
    health.add("K25", int((kinds == EventKind.OVERHEAD).sum()))
    return kinds


def _thread_key(process: int | str | None, thread: int | str | None) -> tuple[int | str, int | str]:
    """Return the process and thread of an event, with numbers in text converted to integers."""
    return _parsed_id(process), _parsed_id(thread)


def _parsed_id(value: int | str | None) -> int | str:
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 20:
        return int(value)
    return -1 if value is None else value


def _merge_thread_spellings(trace: KinetoTrace) -> None:
    """Merge the numbers of threads whose names differ only in spelling."""
    first: dict[tuple[int | str, int | str], int] = {}
    table = np.array([first.setdefault(t, i) for i, t in enumerate(trace.threads)], "i4")
    trace.columns["thread"] = table[trace.columns["thread"]]
    trace.memory[0] = table[trace.memory[0]]


def _json_object(text: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _trailer(text: bytes) -> dict[str, Any]:
    rest = text.strip().removeprefix(b",")
    return _json_object(b"{" + rest) if rest.startswith((b'"', b"\n", b" ", b"\r")) else {}
