"""From decoded events to columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

import numpy as np

from irgraph.capture.kineto.reading.columns import Columns
from irgraph.capture.kineto.reading.decoders import (
    ARROW,
    INSTANT,
    METADATA,
    NOTHING,
    PHASES,
    REST,
    AnyEvent,
    Event,
    Known,
)
from irgraph.capture.kineto.reading.events import Events
from irgraph.capture.kineto.reading.health import Health
from irgraph.capture.kineto.reading.selection import Window
from irgraph.capture.kineto.reading.trace import COLUMNS, NO_COLLECTIVE, Array, Collective, Kind

CATEGORIES = {
    "cpu_op": Kind.OP, "operator": Kind.OP, "user_annotation": Kind.ANNOTATION,
    "cuda_runtime": Kind.RUNTIME, "runtime": Kind.RUNTIME, "cuda_driver": Kind.RUNTIME,
    "driver": Kind.RUNTIME, "hip_runtime": Kind.RUNTIME, "hip_driver": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME, "privateuse1_driver": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME, "mtia_runtime": Kind.RUNTIME, "glow_runtime": Kind.RUNTIME,
    "kernel": Kind.KERNEL, "concurrent_kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY, "memcpy": Kind.MEMCPY, "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET, "cuda_sync": Kind.SYNC, "gpu_user_annotation": Kind.GPU_ANNOTATION,
    "python_function": Kind.PYTHON, "overhead": Kind.OVERHEAD, "trace": Kind.OTHER,
    "cpu_instant_event": Kind.OTHER, "cuda_profiler_range": Kind.OTHER,
}  # fmt: skip
"""Kinds by category, spelled in small letters."""

_OF_OPERATORS = ("external", "record", "sequence", "forward")
_OF_CALLS = ("external", "correlation")
_OF_OTHERS = (
    "external", "correlation", "stream", "device", "nbytes", "wait_record", "wait_stream"
)  # fmt: skip
_KEYS: dict[str, tuple[str, ...]] = {
    name: _OF_CALLS if kind == Kind.RUNTIME else _OF_OPERATORS
    for name, kind in CATEGORIES.items()
    if kind in (Kind.OP, Kind.ANNOTATION, Kind.PYTHON, Kind.RUNTIME)
}
"""Arguments by category; all others have ``_OF_OTHERS``."""

MEMORY = "[memory]"
"""Name of events that tell of a change of memory."""

_OF_MEMORY = ("device_type", "device", "nbytes", "allocated", "reserved")
"""The figures of a change of memory, in the order of ``MemoryChange``."""

_LIMIT = 1 << 62
_MANY = 256
"""Events of one category that are turned into columns at once."""


class _Numbers(dict[Any, int]):
    """Gives a number to whatever is asked for first."""

    def __missing__(self, key: object) -> int:
        number = self[key] = len(self)
        return number


class _OfProcess(dict[Any, int]):
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
        for table, first in (
            (self.modules, ""),
            (self.collectives, NO_COLLECTIVE),
            (self.shapes, None),
        ):
            table([first])
        self.waiting: dict[str, list[Any]] = defaultdict(list)
        self.columns = Columns()
        self.decimals = self.whole = 0
        self.nanoseconds = False
        self.memory: list[tuple[Array, Array, int, list[Array]]] = []
        self.flows: list[tuple[int, bool, int, int]] = []
        self.indices: list[Array] = []
        self.thread_names: dict[tuple[int | str, int | str], str] = {}

    def add(self, events: Events) -> None:
        """Take a piece's events: complete ones into columns, names and flows apart."""
        if events and isinstance(events[0], AnyEvent):
            self._number([e.args for e in events])
            self._others(e for e in events if e.ph != "X")
            events = [e for e in events if e.ph == "X"]
        by_category: dict[str, list[Any]] = defaultdict(list)
        for event in events:
            by_category[event.cat].append(event)
        # most arrows repeat what correlations say
        self._others([e for e in by_category.pop(ARROW, ()) if e.of != "ac2g"])
        self._others(by_category.pop(METADATA, ()))
        instants = by_category.pop(INSTANT, [])
        self._number([e.args for e in instants])
        self._instants(instants)
        self._others(by_category.pop(REST, ()))
        for category, some in by_category.items():
            if category.lower() in self.skip:
                self._number([e.args for e in some])
                self.health.add("K33", len(some), ", ".join(sorted(self.skip)))
                continue
            waiting = self.waiting[category]
            if waiting and isinstance(waiting[-1], Event) != isinstance(some[0], Event):
                self._flush(category)
            self.waiting[category] += some
            if len(self.waiting[category]) >= _MANY:
                self._flush(category)

    def _number(self, args: Sequence[Any]) -> None:
        """Keep the numbers that the profiler gave to records of the host, read or left out."""
        numbers = [a.index for a in args]
        if numbers.count(-1) < len(numbers):
            found = [n for n in numbers if 0 <= n < _LIMIT]
            self.indices += [np.array(found, "i8")] if found else []

    def finish(self) -> None:
        """Take what still waits for more of its category."""
        for category in list(self.waiting):
            self._flush(category)

    def _flush(self, category: str) -> None:
        """Turn the events of one category that wait into columns."""
        events: Sequence[Any] = self.waiting.pop(category)
        # each sort has other arguments, and is asked for its own only
        keys = _KEYS.get(category.lower(), _OF_OTHERS)
        try:
            part = self._columns(events, keys)
        except (OverflowError, ValueError):
            events = self._bounded(events, keys)
            if not events:
                return
            part = self._columns(events, keys)
        scale = 1 if isinstance(events[0].ts, int) else 1000
        if self.window is not None:
            inside = _inside(part, self.window, scale, keys is _OF_OTHERS)
            part = {key: values[inside] for key, values in part.items()}
        self.columns.put(part, self.categories.table[category], scale)

    def _columns(self, events: Sequence[Any], keys: tuple[str, ...]) -> dict[str, Array]:
        """Return the columns that some events of one sort have."""
        args = [e.args for e in events]
        found: dict[str, Array] = {}
        found["start"] = self._times(events, "ts")
        found["duration"] = self._times(events, "dur")
        found["name"] = self.names([e.name for e in events])
        for key in keys:
            found[key] = _narrow(_integers(args, key), COLUMNS[key])
        if keys is not _OF_OPERATORS and found["external"].min() < 0:
            older = _integers(args, "external_old")
            found["external"] = np.where(found["external"] >= 0, found["external"], older)
        found["thread"] = self._threads(events)
        if keys is not _OF_CALLS:
            self._number(args)
        if keys is _OF_OPERATORS:
            found.update(self._texts(args))
        elif keys is _OF_OTHERS and any(a.collective for a in args):
            found["collective"] = self.collectives([_collective(a) for a in args])
        return found

    def _threads(self, events: Sequence[Any]) -> Array:
        """Return the numbers of threads; most pieces come from one process."""
        processes, threads = [e.pid for e in events], [e.tid for e in events]
        if processes.count(processes[0]) < len(processes):
            return self.threads(list(zip(processes, threads, strict=True)))
        if threads.count(threads[0]) == len(threads):
            return np.full(len(threads), self.threads.table[processes[0], threads[0]], "i4")
        number = _OfProcess(processes[0], self.threads.table)
        return np.fromiter(map(number.__getitem__, threads), "i4", len(threads))

    def _texts(self, args: Sequence[Any]) -> dict[str, Array]:
        """Return shapes and modules of operators, where there are any."""
        found = {}
        shapes = self._shapes(args)
        if shapes is not None:
            found["shape"] = shapes
        modules = [a.hierarchy for a in args]
        if modules.count("") < len(modules):
            found["module"] = self.modules(modules)
        return found

    def _shapes(self, args: Sequence[Any]) -> Array | None:
        """Return the numbers of operand shapes and types; 0 where an event has none."""
        dims = [a.dims for a in args]
        if dims.count(NOTHING) == len(dims):
            dims = [a.dims_old for a in args]
        if dims.count(NOTHING) == len(dims):
            return None
        rows = [i for i, text in enumerate(dims) if len(text)]
        shapes = np.zeros(len(args), "i4")
        shapes[rows] = self.shapes([(bytes(dims[i]), bytes(args[i].types)) for i in rows])
        return shapes

    def _times(self, events: Sequence[Any], key: str) -> Array:
        """Return whole times as they are, others in thousandths."""
        if isinstance(events[0].ts, int):
            self.whole += len(events)
            times = _each(events, key)
            if times.dtype == np.int64 and max(times.max(), -times.min()) > _LIMIT:
                raise OverflowError
            return times
        values = [getattr(e, key) for e in events]
        text = b",".join(values)
        self.decimals += text.count(b".")
        self.whole += text.count(b",") + 1 - text.count(b".")
        self.health.add("K09", text.count(b'"') // 2, "times written as text")
        return thousandths(values)

    def _bounded(self, events: Sequence[Any], keys: tuple[str, ...]) -> list[Any]:
        """Drop events with a number that no real trace holds."""
        kept: list[Any] = []
        for event in events:
            try:
                self._columns([event], keys)
                kept.append(event)
            except (OverflowError, ValueError):
                self.health.add("K09")
        return kept

    def _others(self, events: Iterable[Any]) -> None:
        skipped = 0
        for event in events:
            if event.ph in ("s", "f"):
                if getattr(event, "of", event.cat).startswith("fwdbwd"):
                    self._flow(event)
            elif event.ph == "M" and event.name == "thread_name":
                self.thread_names[_place(event)] = event.args.name
            elif event.ph in ("B", "E"):
                skipped += 1
            elif not event.ph or event.ph not in PHASES:
                self.health.add("K09", 1, "events of no known type")
        self.health.add("K05", skipped, "begin and end events, which torch does not write")

    def _instants(self, events: Iterable[Any]) -> None:
        """Take changes of memory into columns, their times in thousandths or as they are."""
        some = [e for e in events if e.name == MEMORY]
        if not some:
            return
        args, whole = [e.args for e in some], isinstance(some[0].ts, int)
        times = [e.ts for e in some]
        try:
            start = np.fromiter(times, "i8", len(some)) if whole else thousandths(times)
            figures = [_each(args, key).astype("i8") for key in _OF_MEMORY]
        except (OverflowError, ValueError):
            self.health.add("K09", len(some), "changes of memory with impossible figures")
            return
        self.memory.append((self._threads(some), start, 1 if whole else 1000, figures))

    def _flow(self, event: Known) -> None:
        if not isinstance(event.id, int):
            return
        try:
            start = event.ts if isinstance(event.ts, int) else int(thousandths([event.ts])[0])
        except (OverflowError, ValueError):
            return
        thread = self.threads.table[event.pid, event.tid]
        scaled = start if isinstance(event.ts, int) else start // 1000
        self.flows.append((event.id, event.ph == "s", thread, scaled))


def _inside(part: dict[str, Array], window: Window, scale: int, on_device: bool) -> Array:
    """Return which events a window holds: device work may end after it, or begin before it."""
    start, length = window.start * scale // 1000, (window.end - window.start) * scale // 1000
    begin, end = part["start"], part["start"] + part["duration"]
    if on_device:
        within: Array = (end > start) & (begin < start + 2 * length)
        return within
    held: Array = (begin >= start) & (begin < start + length)
    return held


def _place(event: Known) -> tuple[int | str, int | str]:
    return (event.pid if event.pid is not None else -1, event.tid if event.tid is not None else -1)


def _integers(args: Sequence[Any], key: str) -> Array:
    """Return one argument of each event as integers; old traces name streams in words."""
    try:
        return _each(args, key)
    except (TypeError, ValueError):
        return np.fromiter(map(_integer, map(attrgetter(key), args)), "i8", len(args))


def _each(records: Sequence[Any], key: str) -> Array:
    """Return a whole number of each record, in an array as narrow as they allow."""
    try:
        return np.fromiter(map(attrgetter(key), records), "i4", len(records))
    except OverflowError:
        return np.fromiter(map(attrgetter(key), records), "i8", len(records))


def _integer(value: object) -> int:
    if isinstance(value, int):
        return value
    digits = value.removeprefix("stream ") if isinstance(value, str) else ""
    return int(digits) if digits.isdecimal() else -1


def _narrow(values: Array, to: str) -> Array:
    if np.can_cast(values.dtype, to):
        return values
    limits = np.iinfo(to)
    return np.where((values < limits.min) | (values > limits.max), -1, values).astype(to)


def _collective(args: Known) -> Collective:
    """Return what the arguments of an event say of a collective."""
    if not args.collective:
        return NO_COLLECTIVE
    group = f"{args.group_name} {args.group_ranks}".strip()
    return Collective(group, args.collective, args.elements, args.received, args.dtype, args.group)


def thousandths(values: Sequence[Any]) -> Array:
    """Return decimal texts times 1000 as integers, exactly; further digits are dropped."""
    text = b",".join(values)
    flat = np.frombuffer(text, "u1")
    dots, ends = np.flatnonzero(flat == ord(".")), np.flatnonzero(flat == ord(","))
    ends = np.append(ends, len(flat))
    if len(dots) == len(ends) and bool(np.all(ends - dots == 4)):
        return np.fromstring(text.replace(b".", b"").decode("ascii"), dtype="i8", sep=",")
    return np.array(list(map(_thousandth, map(bytes, values), repeat(_LIMIT))), "i8")


def _thousandth(text: bytes, limit: int) -> int:
    """Return one decimal text times 1000."""
    text = text.strip(b'"')
    head, _, tail = text.partition(b".")
    if not tail.isdigit() and (tail or not head.lstrip(b"-").isdigit()):
        number = round(float(text) * 1000)
    else:
        number = abs(int(head)) * 1000 + int((tail + b"000")[:3])
        number = -number if head.startswith(b"-") else number
    if abs(number) > limit:
        raise OverflowError
    return number
