"""From decoded events to columns."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from irgraph.capture.kineto.reading.columns import Columns, to_whole_nanoseconds
from irgraph.capture.kineto.reading.decimals import MAX_NUMBER, thousandths
from irgraph.capture.kineto.reading.decoders import (
    ARROW,
    INSTANT,
    METADATA,
    NO_TEXT,
    PHASES,
    REST,
    AnyEvent,
    AnyRecord,
    Event,
)
from irgraph.capture.kineto.reading.events import Events
from irgraph.capture.kineto.reading.health import Health
from irgraph.capture.kineto.reading.selection import Window
from irgraph.capture.kineto.reading.trace import (
    COLUMNS,
    NO_COLLECTIVE,
    NO_CONFIGURATION,
    Array,
    Collective,
    Configuration,
    EventKind,
)

MTIA_WORK = "mtia_ccp_events"
"""Category of everything that a device of Meta (MTIA) does: kernels, copies, waits."""

MTIA_KINDS = {
    "event_wait": EventKind.OTHER, "event_record": EventKind.OTHER,
    "dma_request": EventKind.MEMCPY,
}  # fmt: skip
"""Kinds of an MTIA device's events by name; all other events are kernels."""

ROCM_COPY = re.compile(r"MEMORY_COPY_\w+|__amd_rocclr_copyBuffer\w*(\.kd)?")
ROCM_FILL = re.compile(r"__amd_rocclr_fillBuffer\w*(\.kd)?")
"""Names of copies and fills that ROCm up to 7.1 records as kernels."""

CATEGORIES = {
    "cpu_op": EventKind.OP, "operator": EventKind.OP, "user_annotation": EventKind.ANNOTATION,
    "cuda_runtime": EventKind.RUNTIME, "runtime": EventKind.RUNTIME,
    "cuda_driver": EventKind.RUNTIME, "driver": EventKind.RUNTIME,
    "hip_runtime": EventKind.RUNTIME, "hip_driver": EventKind.RUNTIME,
    "privateuse1_runtime": EventKind.RUNTIME, "privateuse1_driver": EventKind.RUNTIME,
    "xpu_runtime": EventKind.RUNTIME, "mtia_runtime": EventKind.RUNTIME,
    "glow_runtime": EventKind.RUNTIME,
    "kernel": EventKind.KERNEL, "concurrent_kernel": EventKind.KERNEL,
    "gpu_memcpy": EventKind.MEMCPY, "memcpy": EventKind.MEMCPY, "gpu_memset": EventKind.MEMSET,
    "memset": EventKind.MEMSET, "cuda_sync": EventKind.SYNC, MTIA_WORK: EventKind.KERNEL,
    "gpu_user_annotation": EventKind.GPU_ANNOTATION, "python_function": EventKind.PYTHON,
    "overhead": EventKind.OVERHEAD, "trace": EventKind.OTHER,
    "cpu_instant_event": EventKind.OTHER, "cuda_profiler_range": EventKind.OTHER,
}  # fmt: skip
"""Kind of event by category in lower case."""

_OPERATOR_KEYS = ("external", "record", "sequence", "forward")
_CALL_KEYS = ("external", "correlation")
_OTHER_KEYS = (
    "external", "correlation", "stream", "device", "nbytes", "wait_record", "wait_stream"
)  # fmt: skip
_KEYS_BY_CATEGORY: dict[str, tuple[str, ...]] = {
    name: _CALL_KEYS if kind == EventKind.RUNTIME else _OPERATOR_KEYS
    for name, kind in CATEGORIES.items()
    if kind in (EventKind.OP, EventKind.ANNOTATION, EventKind.PYTHON, EventKind.RUNTIME)
}
"""Argument columns by category; all other categories have ``_OTHER_KEYS``."""

MEMORY = "[memory]"
"""Name of the events that record a change of memory."""

_MEMORY_KEYS = ("device_type", "device", "nbytes", "allocated", "reserved")
"""The figures of a change of memory, in the order of ``MemoryChange``."""

_BATCH_EVENTS = 256
"""Number of events of one category that are converted to columns in one batch."""


class _Numbers(dict[Any, int]):
    """Numbers keys in the order in which they are first looked up."""

    def __missing__(self, key: object) -> int:
        number = self[key] = len(self)
        return number


class _ThreadNumbers(dict[Any, int]):
    """The numbers of one process's threads."""

    def __init__(self, process: object, table: dict[Any, int]) -> None:
        self.process, self.table = process, table

    def __missing__(self, thread: object) -> int:
        number = self[thread] = self.table[self.process, thread]
        return number


class Interner:
    """Numbers distinct values in order of first use."""

    def __init__(self) -> None:
        self.table: dict[Any, int] = _Numbers()

    def __call__(self, values: Sequence[Hashable]) -> Array:
        """Return the number of each value."""
        return np.fromiter(map(self.table.__getitem__, values), "i4", len(values))


class Collector:
    """Gathers the columns of a trace, one piece after the other."""

    def __init__(
        self, health: Health, skip: frozenset[str] = frozenset(), window: Window | None = None
    ) -> None:
        self.health, self.skip, self.window = health, skip, window
        self.names, self.threads, self.shapes = Interner(), Interner(), Interner()
        self.modules, self.collectives, self.categories = Interner(), Interner(), Interner()
        self.concretes, self.strides, self.configurations = Interner(), Interner(), Interner()
        for table, first in (
            (self.modules, ""),
            (self.collectives, NO_COLLECTIVE),
            (self.shapes, None),
            (self.concretes, b""),
            (self.strides, b""),
            (self.configurations, NO_CONFIGURATION),
        ):
            table([first])
        self.pending: dict[str, list[Any]] = defaultdict(list)
        self.columns = Columns()
        self.decimals = self.integers = 0
        self.nanoseconds = False
        self.has_old_stacks = False
        self.memory: list[tuple[Array, Array, int, list[Array]]] = []
        self.flows: list[tuple[int, bool, int, int]] = []
        self.indices: list[Array] = []
        self.thread_names: dict[tuple[int | str, int | str], str] = {}

    def add(self, events: Events) -> None:
        """Add a piece's events: complete ones to columns, thread names and flows separately."""
        if events and isinstance(events[0], AnyEvent):
            self._add_indices([e.args for e in events])
            self._add_other_events(e for e in events if e.ph != "X")
            events = [e for e in events if e.ph == "X"]
        by_category: dict[str, list[Any]] = defaultdict(list)
        for event in events:
            by_category[event.cat].append(event)
        # most arrows repeat the launches that correlations already give
        self._add_other_events([e for e in by_category.pop(ARROW, ()) if e.arrow != "ac2g"])
        self._add_other_events(by_category.pop(METADATA, ()))
        instants = by_category.pop(INSTANT, [])
        self._add_indices([e.args for e in instants])
        self._add_memory_changes(instants)
        self._add_other_events(by_category.pop(REST, ()))
        for category, group in by_category.items():
            if category.lower() in self.skip:
                self._add_indices([e.args for e in group])
                self.health.add("K33", len(group), ", ".join(sorted(self.skip)))
                continue
            pending = self.pending[category]
            if pending and isinstance(pending[-1], Event) != isinstance(group[0], Event):
                self._flush(category)
            self.pending[category] += group
            if len(self.pending[category]) >= _BATCH_EVENTS:
                self._flush(category)

    def _add_indices(self, args: Sequence[Any]) -> None:
        """Collect the profiler's numbers of host records, including skipped records."""
        numbers = [a.index for a in args]
        if numbers.count(-1) < len(numbers):
            indices = [n for n in numbers if 0 <= n < MAX_NUMBER]
            self.indices += [np.array(indices, "i8")] if indices else []

    def finish(self) -> None:
        """Convert the pending events of every category to columns."""
        for category in list(self.pending):
            self._flush(category)

    def _flush(self, category: str) -> None:
        """Convert the pending events of one category to columns."""
        events: Sequence[Any] = self.pending.pop(category)
        # each kind of event has its own arguments: only these are read
        keys = _KEYS_BY_CATEGORY.get(category.lower(), _OTHER_KEYS)
        try:
            part = self._columns(events, keys)
        except (OverflowError, ValueError):
            if to_whole_nanoseconds(events):
                self.health.add("K08", detail="nanoseconds as floats, exact to 256 ns")
            events = self._valid_events(events, keys)
            if not events:
                return
            part = self._columns(events, keys)
        scale = 1 if isinstance(events[0].ts, int) else 1000
        if self.window is not None:
            inside = _window_mask(part, self.window, scale, keys is _OTHER_KEYS)
            part = {key: values[inside] for key, values in part.items()}
        self.columns.append(part, self.categories.table[category], scale)

    def _columns(self, events: Sequence[Any], keys: tuple[str, ...]) -> dict[str, Array]:
        """Return the columns of events that share argument keys."""
        args = [e.args for e in events]
        columns: dict[str, Array] = {}
        columns["start"] = self._times(events, "ts")
        columns["duration"] = self._times(events, "dur")
        columns["name"] = self.names([e.name for e in events])
        for key in keys:
            columns[key] = _narrowed(_integers(args, key), COLUMNS[key])
        if keys is not _OPERATOR_KEYS and columns["external"].min() < 0:
            old_ids = _integers(args, "external_old")
            columns["external"] = np.where(columns["external"] >= 0, columns["external"], old_ids)
        columns["thread"] = self._threads(events)
        if keys is not _CALL_KEYS:
            self._add_indices(args)
        if keys is _OPERATOR_KEYS:
            columns.update(self._text_columns(args))
        elif keys is _OTHER_KEYS:
            if any(a.collective for a in args):
                columns["collective"] = self.collectives([_collective(a) for a in args])
            if any(len(a.grid) for a in args):
                columns["configuration"] = self.configurations(list(map(_configuration, args)))
        return columns

    def _threads(self, events: Sequence[Any]) -> Array:
        """Return the thread number of each event; most pieces come from one process."""
        processes, threads = [e.pid for e in events], [e.tid for e in events]
        if processes.count(processes[0]) < len(processes):
            return self.threads(list(zip(processes, threads, strict=True)))
        if threads.count(threads[0]) == len(threads):
            return np.full(len(threads), self.threads.table[processes[0], threads[0]], "i4")
        number = _ThreadNumbers(processes[0], self.threads.table)
        return np.fromiter(map(number.__getitem__, threads), "i4", len(threads))

    def _text_columns(self, args: Sequence[Any]) -> dict[str, Array]:
        """Return shapes, values, strides and modules of operators, if an event has some."""
        columns = {}
        self.has_old_stacks |= [a.stack for a in args].count(NO_TEXT) < len(args)
        values = [a.concrete for a in args]
        if values.count(NO_TEXT) < len(values):
            columns["concrete"] = self.concretes([bytes(text) for text in values])
        strides = [a.strides for a in args]
        if strides.count(NO_TEXT) < len(strides):
            columns["strides"] = self.strides([bytes(text) for text in strides])
        shapes = self._shapes(args)
        if shapes is not None:
            columns["shape"] = shapes
        modules = [a.hierarchy for a in args]
        if modules.count("") < len(modules):
            columns["module"] = self.modules(modules)
        return columns

    def _shapes(self, args: Sequence[Any]) -> Array | None:
        """Return the number of each event's operand shapes and types, 0 if it has none.

        ``None`` if no event has any.
        """
        dims = [a.dims for a in args]
        if dims.count(NO_TEXT) == len(dims):
            dims = [a.dims_old for a in args]
        if dims.count(NO_TEXT) == len(dims):
            return None
        rows = [i for i, text in enumerate(dims) if len(text)]
        shapes = np.zeros(len(args), "i4")
        shapes[rows] = self.shapes([(bytes(dims[i]), bytes(args[i].types)) for i in rows])
        return shapes

    def _times(self, events: Sequence[Any], key: str) -> Array:
        """Return times: integers unchanged, decimal texts in thousandths."""
        if isinstance(events[0].ts, int):
            self.integers += len(events)
            times = _attribute_array(events, key)
            if times.dtype == np.int64 and max(times.max(), -times.min()) > MAX_NUMBER:
                raise OverflowError
            return times
        values = [getattr(e, key) for e in events]
        text = b",".join(values)
        self.decimals += text.count(b".")
        self.integers += text.count(b",") + 1 - text.count(b".")
        self.health.add("K09", text.count(b'"') // 2, "times written as text")
        return thousandths(values)

    def _valid_events(self, events: Sequence[Any], keys: tuple[str, ...]) -> list[Any]:
        """Return the events without those whose numbers are out of range."""
        valid: list[Any] = []
        for event in events:
            try:
                self._columns([event], keys)
                valid.append(event)
            except (OverflowError, ValueError):
                self.health.add("K09")
        return valid

    def _add_other_events(self, events: Iterable[Any]) -> None:
        skipped = 0
        for event in events:
            if event.ph in ("s", "f"):
                if getattr(event, "arrow", event.cat).startswith("fwdbwd"):
                    self._add_flow(event)
            elif event.ph == "M" and event.name == "thread_name":
                self.thread_names[_thread_key(event)] = event.args.name
            elif event.ph in ("B", "E"):
                skipped += 1
            elif not event.ph or event.ph not in PHASES:
                self.health.add("K09", 1, "events of no known type")
        self.health.add("K05", skipped, "begin and end events, which torch does not write")

    def _add_memory_changes(self, events: Iterable[Any]) -> None:
        """Add changes of memory, their times in thousandths or unchanged if they are integers."""
        changes = [e for e in events if e.name == MEMORY]
        if not changes:
            return
        args, is_integer = [e.args for e in changes], isinstance(changes[0].ts, int)
        times = [e.ts for e in changes]
        try:
            start = np.fromiter(times, "i8", len(changes)) if is_integer else thousandths(times)
            figures = [_attribute_array(args, key).astype("i8") for key in _MEMORY_KEYS]
        except (OverflowError, ValueError):
            self.health.add("K09", len(changes), "changes of memory with impossible figures")
            return
        self.memory.append((self._threads(changes), start, 1 if is_integer else 1000, figures))

    def _add_flow(self, event: AnyRecord) -> None:
        if not isinstance(event.id, int):
            return
        try:
            start = event.ts if isinstance(event.ts, int) else int(thousandths([event.ts])[0])
        except (OverflowError, ValueError):
            return
        thread = self.threads.table[event.pid, event.tid]
        scaled = start if isinstance(event.ts, int) else start // 1000
        self.flows.append((event.id, event.ph == "s", thread, scaled))


def _window_mask(part: dict[str, Array], window: Window, scale: int, on_device: bool) -> Array:
    """Return a mask of the events in a window; device work may end after it or begin before it."""
    start, length = window.start * scale // 1000, (window.end - window.start) * scale // 1000
    begin, end = part["start"], part["start"] + part["duration"]
    if on_device:
        device_mask: Array = (end > start) & (begin < start + 2 * length)
        return device_mask
    host_mask: Array = (begin >= start) & (begin < start + length)
    return host_mask


def _thread_key(event: AnyRecord) -> tuple[int | str, int | str]:
    return (event.pid if event.pid is not None else -1, event.tid if event.tid is not None else -1)


def _integers(args: Sequence[Any], key: str) -> Array:
    """Return one argument of each event as integers; old traces spell streams ``stream 7``."""
    try:
        return _attribute_array(args, key)
    except (TypeError, ValueError):
        return np.fromiter(map(_integer, map(attrgetter(key), args)), "i8", len(args))


def _attribute_array(records: Sequence[Any], key: str) -> Array:
    """Return an integer attribute of each record, as int32 if all values fit, else as int64."""
    try:
        return np.fromiter(map(attrgetter(key), records), "i4", len(records))
    except OverflowError:
        return np.fromiter(map(attrgetter(key), records), "i8", len(records))


def _integer(value: object) -> int:
    if isinstance(value, int):
        return value
    digits = value.removeprefix("stream ") if isinstance(value, str) else ""
    return int(digits) if digits.isdecimal() else -1


def _narrowed(values: Array, dtype: str) -> Array:
    if np.can_cast(values.dtype, dtype):
        return values
    limits = np.iinfo(dtype)
    return np.where((values < limits.min) | (values > limits.max), -1, values).astype(dtype)


def _configuration(args: AnyRecord) -> Configuration:
    """Return the configuration of a kernel's launch."""
    parts = (args.grid, args.block, args.registers, args.block_memory, args.occupancy)
    return Configuration(*map(bytes, parts))


def _collective(args: AnyRecord) -> Collective:
    """Return the collective that the arguments of an event describe."""
    if not args.collective:
        return NO_COLLECTIVE
    group = f"{args.group_name} {args.group_ranks}".strip()
    return Collective(group, args.collective, args.elements, args.received, args.dtype, args.group)
