"""From decoded events to columns."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from irgraph.capture.kineto.reading.attributes import VALUES, argument_column, integer_array
from irgraph.capture.kineto.reading.columns import Columns, to_whole_nanoseconds
from irgraph.capture.kineto.reading.decimals import MAX_NUMBER, float_thousandths, thousandths
from irgraph.capture.kineto.reading.decoders import (
    ARROW,
    INSTANT,
    METADATA,
    NO_TEXT,
    PHASES,
    REST,
    AnyEvent,
    AnyRecord,
)
from irgraph.capture.kineto.reading.events import Events
from irgraph.capture.kineto.reading.health import Health
from irgraph.capture.kineto.reading.selection import Window
from irgraph.capture.kineto.reading.trace import (
    NO_COLLECTIVE,
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
_PYTHON_KEYS = ("external",)
_CALL_KEYS = ("external", "correlation")
_OTHER_KEYS = (
    "external", "correlation", "stream", "device", "nbytes", "wait_record", "wait_stream"
)  # fmt: skip
_KEYS_BY_CATEGORY: dict[str, tuple[str, ...]] = {
    name: _CALL_KEYS if kind == EventKind.RUNTIME else _OPERATOR_KEYS
    for name, kind in CATEGORIES.items()
    if kind in (EventKind.OP, EventKind.ANNOTATION, EventKind.RUNTIME)
} | {"python_function": _PYTHON_KEYS}
"""Argument columns by category; all other categories have ``_OTHER_KEYS``."""

MEMORY = "[memory]"
"""Name of the events that record a change of memory."""

_MEMORY_KEYS = ("device_type", "device", "nbytes", "allocated", "reserved")
"""The figures of a change of memory, in the order of ``MemoryChange``."""

_CONFIGURATION = attrgetter(
    "grid", "block", "registers", "block_memory", "occupancy", "priority", "channel", "channel_type"
)  # fmt: skip
"""Arguments of device work in the order of ``Configuration``."""

SEPARATOR = b"\0"
"""Byte between JSON texts that are numbered as one: no JSON text has it."""

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


class _Appenders(dict[str, Callable[[Any], None]]):
    """Functions that append an event to the list of its category."""

    def __init__(self, by_category: dict[str, list[Any]]) -> None:
        self.by_category = by_category

    def __missing__(self, category: str) -> Callable[[Any], None]:
        events = self.by_category[category] = []
        append = self[category] = events.append
        return append


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
        self.names, self.threads, self.operands = Interner(), Interner(), Interner()
        self.modules, self.collectives, self.categories = Interner(), Interner(), Interner()
        self.configurations = Interner()
        for table, first in (
            (self.modules, ""),
            (self.collectives, NO_COLLECTIVE),
            (self.operands, SEPARATOR * 3),
            (self.configurations, SEPARATOR * (len(Configuration._fields) - 1)),
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
        by_category: dict[str, list[Any]] = {}
        append_by_category = _Appenders(by_category)
        for event in events:
            append_by_category[event.cat](event)
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
            if pending and type(pending[-1]) is not type(group[0]):
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
            columns[key] = argument_column(args, key)
        if keys in (_CALL_KEYS, _OTHER_KEYS) and columns["external"].min() < 0:
            old_ids = integer_array(args, "external_old")
            columns["external"] = np.where(columns["external"] >= 0, columns["external"], old_ids)
        columns["thread"] = self._threads(events)
        if keys is not _CALL_KEYS:
            self._add_indices(args)
        if keys is _OPERATOR_KEYS:
            columns.update(self._text_columns(args))
        elif keys is _OTHER_KEYS:
            if any(a.collective for a in args):
                columns["collective"] = self.collectives([_collective(a) for a in args])
            if any(len(a.grid) or len(a.channel) for a in args):
                parts = map(_CONFIGURATION, args)
                columns["configuration"] = self.configurations(list(map(SEPARATOR.join, parts)))
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
        texts = self._operand_texts(args)
        if texts is not None:
            columns["shape"] = texts
        modules = [a.hierarchy for a in args]
        if modules.count("") < len(modules):
            columns["module"] = self.modules(modules)
        return columns

    def _operand_texts(self, args: Sequence[Any]) -> Array | None:
        """Return the number of each event's dims, types, values and strides of operands.

        ``None`` if no event has any.
        """
        dims, values = [a.dims for a in args], [a.concrete for a in args]
        strides = [a.strides for a in args]
        if dims.count(NO_TEXT) == len(dims):
            dims = [a.dims_old for a in args]
        if all(texts.count(NO_TEXT) == len(args) for texts in (dims, values, strides)):
            return None
        types = [a.types for a in args]
        parts = zip(dims, types, values, strides, strict=True)
        return self.operands(list(map(SEPARATOR.join, parts)))

    def _times(self, events: Sequence[Any], key: str) -> Array:
        """Return times: integers unchanged, decimals in thousandths."""
        if isinstance(events[0].ts, int):
            self.integers += len(events)
            times = integer_array(events, key)
            if times.dtype == np.int64 and max(times.max(), -times.min()) > MAX_NUMBER:
                raise OverflowError
            return times
        values = VALUES[key](events)
        if isinstance(values[0], float):
            floats = np.fromiter(values, "f8", len(values))
            decimals = int(np.count_nonzero(floats != np.floor(floats)))
            self.decimals += decimals
            self.integers += len(values) - decimals
            return float_thousandths(floats)
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
        flows = []
        for event in events:
            if event.ph in ("s", "f"):
                if getattr(event, "arrow", event.cat).startswith("fwdbwd"):
                    flows.append(event)
            elif event.ph == "M" and event.name == "thread_name":
                self.thread_names[_thread_key(event)] = event.args.name
            elif event.ph in ("B", "E"):
                skipped += 1
            elif not event.ph or event.ph not in PHASES:
                self.health.add("K09", 1, "events of no known type")
        self._add_flows(flows)
        self.health.add("K05", skipped, "begin and end events, which torch does not write")

    def _add_memory_changes(self, events: Iterable[Any]) -> None:
        """Add changes of memory, their times in thousandths or unchanged if they are integers."""
        changes = [e for e in events if e.name == MEMORY]
        if not changes:
            return
        args, times = [e.args for e in changes], VALUES["ts"](changes)
        is_integer = isinstance(times[0], int)
        try:
            start = np.fromiter(times, "i8", len(changes)) if is_integer else thousandths(times)
            figures = [integer_array(args, key).astype("i8") for key in _MEMORY_KEYS]
        except (OverflowError, ValueError):
            self.health.add("K09", len(changes), "changes of memory with impossible figures")
            return
        self.memory.append((self._threads(changes), start, 1 if is_integer else 1000, figures))

    def _add_flows(self, flows: Sequence[AnyRecord]) -> None:
        """Add the ends of arrows, without those whose ids or times are no numbers."""
        flows = [flow for flow in flows if isinstance(flow.id, int)]
        if not flows:
            return
        try:
            starts = _exact_thousandths(VALUES["ts"](flows))
        except (OverflowError, ValueError):
            if len(flows) > 1:
                for flow in flows:
                    self._add_flows([flow])
            return
        threads = self._threads(flows).tolist()
        for flow, thread, start in zip(flows, threads, starts, strict=True):
            self.flows.append((flow.id, flow.ph == "s", thread, start))


def _exact_thousandths(values: list[Any]) -> list[int]:
    """Return times in thousandths, which may have more than 64 bits."""
    if isinstance(values[0], int):
        return [1000 * value for value in values]
    result: list[int] = thousandths(values).tolist()
    return result


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


def _collective(args: AnyRecord) -> Collective:
    """Return the collective that the arguments of an event describe."""
    if not args.collective:
        return NO_COLLECTIVE
    group = f"{args.group_name} {args.group_ranks}".strip()
    return Collective(group, args.collective, args.elements, args.received, args.dtype, args.group)
