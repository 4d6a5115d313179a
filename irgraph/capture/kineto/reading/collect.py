"""From decoded events to columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np

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
from irgraph.capture.kineto.reading.health import Health
from irgraph.capture.kineto.reading.pieces import Events
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
    "cpu_instant_event": Kind.OTHER, "cuda_profiler_range": Kind.OTHER, "": Kind.OTHER,
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

_Reader: TypeAlias = Callable[[Iterable[Any]], list[Any]]
_READ: dict[str, _Reader] = {
    "external": lambda args: [a.external for a in args],
    "external_old": lambda args: [a.external_old for a in args],
    "record": lambda args: [a.record for a in args],
    "sequence": lambda args: [a.sequence for a in args],
    "forward": lambda args: [a.forward for a in args],
    "correlation": lambda args: [a.correlation for a in args],
    "stream": lambda args: [a.stream for a in args],
    "device": lambda args: [a.device for a in args],
    "nbytes": lambda args: [a.nbytes for a in args],
    "wait_record": lambda args: [a.wait_record for a in args],
    "wait_stream": lambda args: [a.wait_stream for a in args],
}
"""How arguments are read from many events: spelled out, as that takes half the time."""

MEMORY = "[memory]"
"""Name of events that tell of a change of memory."""

_OF_MEMORY: tuple[_Reader, ...] = (
    lambda args: [a.device_type for a in args],
    lambda args: [a.device for a in args],
    lambda args: [a.nbytes for a in args],
    lambda args: [a.allocated for a in args],
    lambda args: [a.reserved for a in args],
)
"""The figures of a change of memory, in the order of ``MemoryChange``."""

_LIMIT = 1 << 62
_MANY = 128
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
        self.parts: list[dict[str, Array]] = []
        self.scales: list[int] = []
        self.decimals = self.whole = 0
        self.nanoseconds = False
        self.memory: list[tuple[Array, Array, int, list[Array]]] = []
        self.flows: list[tuple[int, bool, int, int]] = []
        self.indices: list[Array] = []
        self.thread_names: dict[tuple[int | str, int | str], str] = {}

    def add(self, events: Events) -> None:
        """Take a piece's events: complete ones into columns, names and flows apart."""
        if events and isinstance(events[0], AnyEvent):
            self._number(events)
            self._others(e for e in events if e.ph != "X")
            events = [e for e in events if e.ph == "X"]
        by_category: dict[str, list[Any]] = defaultdict(list)
        for event in events:
            by_category[event.cat].append(event)
        # most arrows repeat what correlations say
        self._others(e for e in by_category.pop(ARROW, ()) if e.of != "ac2g")
        self._others(by_category.pop(METADATA, ()))
        instants = by_category.pop(INSTANT, [])
        self._number(instants)
        self._instants(instants)
        self._others(by_category.pop(REST, ()))
        for category, some in by_category.items():
            self._number(some)
            if category.lower() in self.skip:
                self.health.add("K33", len(some), ", ".join(sorted(self.skip)))
                continue
            waiting = self.waiting[category]
            if waiting and isinstance(waiting[-1], Event) != isinstance(some[0], Event):
                self._flush(category)
            self.waiting[category] += some
            if len(self.waiting[category]) >= _MANY:
                self._flush(category)

    def _number(self, events: Iterable[Any]) -> None:
        """Keep the numbers that the profiler gave to records of the host, read or left out."""
        numbers = [n for event in events if 0 <= (n := event.args.index) < _LIMIT]
        if numbers:
            self.indices.append(np.array(numbers, "i8"))

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
        count = len(part["name"])
        if count:
            part["category"] = np.full(count, self.categories.table[category], "i4")
            self.parts.append(part)
            self.scales.append(scale)

    def _columns(self, events: Sequence[Any], keys: tuple[str, ...]) -> dict[str, Array]:
        """Return the columns that some events of one sort have."""
        args = [e.args for e in events]
        found: dict[str, Array] = {}
        found["start"] = self._times([e.ts for e in events])
        found["duration"] = self._times([e.dur for e in events])
        found["name"] = self.names([e.name for e in events])
        for key in keys:
            found[key] = _narrow(_integers(args, key), COLUMNS[key])
        if keys is not _OF_OPERATORS and found["external"].min() < 0:
            older = _integers(args, "external_old")
            found["external"] = np.where(found["external"] >= 0, found["external"], older)
        found["thread"] = self._threads(events)
        if keys is _OF_OPERATORS:
            found.update(self._texts(args))
        elif keys is _OF_OTHERS and any(a.collective for a in args):
            found["collective"] = self.collectives([_collective(a) for a in args])
        return found

    def _threads(self, events: Sequence[Any]) -> Array:
        """Return the numbers of threads; most pieces come from one process."""
        processes = {e.pid for e in events}
        if len(processes) > 1:
            return self.threads([(e.pid, e.tid) for e in events])
        number = _OfProcess(processes.pop(), self.threads.table)
        return np.fromiter([number[e.tid] for e in events], "i4", len(events))

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

    def _times(self, values: Sequence[Any]) -> Array:
        """Return whole times as they are, others in thousandths."""
        if isinstance(values[0], int):
            self.whole += len(values)
            times = np.fromiter(values, "i8", len(values))
            if times.max() > _LIMIT or times.min() < -_LIMIT:
                raise OverflowError
            return times
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
            figures = [np.fromiter(read(args), "i8", len(some)) for read in _OF_MEMORY]
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
        return np.fromiter(_READ[key](args), "i8", len(args))
    except (TypeError, ValueError):
        return np.fromiter(map(_integer, _READ[key](args)), "i8", len(args))


def _integer(value: object) -> int:
    if isinstance(value, int):
        return value
    digits = value.removeprefix("stream ") if isinstance(value, str) else ""
    return int(digits) if digits.isdecimal() else -1


def _narrow(values: Array, to: str) -> Array:
    if to == "i8":
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
