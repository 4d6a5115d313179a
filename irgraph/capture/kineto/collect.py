"""From decoded events to columns."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

import numpy as np

from irgraph.capture.kineto.health import Health
from irgraph.capture.kineto.pieces import Events
from irgraph.capture.kineto.records import NO_ARGS, Event, FractionEvent
from irgraph.capture.kineto.trace import COLUMNS, Array, Kind

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

_OPERATORS = frozenset(("cpu_op", "Operator", "user_annotation", "python_function"))
_OF_OPERATORS = ("external", "record", "sequence", "forward")
_OF_OTHERS = (
    "external", "correlation", "stream", "device", "nbytes", "wait_record", "wait_stream"
)  # fmt: skip
_LIMIT = 1 << 62
_PHASES = frozenset("XBEbnesftMCiIPNODSTFpRcv(){}")
"""Types of events that the trace event format has."""


class _Numbers(dict[Any, int]):
    """Gives a number to whatever is asked for first."""

    def __missing__(self, key: object) -> int:
        number = self[key] = len(self)
        return number


class Interner:
    """Numbers distinct values in order of first use."""

    def __init__(self) -> None:
        self.table: dict[Any, int] = _Numbers()

    def __call__(self, values: Iterable[Hashable]) -> list[int]:
        """Return the number of each value."""
        return list(map(self.table.__getitem__, values))


class Collector:
    """Gathers the columns of a trace, one piece after the other."""

    def __init__(self, health: Health) -> None:
        self.health = health
        self.names, self.threads, self.shapes = Interner(), Interner(), Interner()
        self.modules, self.collectives, self.categories = Interner(), Interner(), Interner()
        self.modules([""])
        self.collectives([""])
        self.shapes([None])
        self.parts: list[dict[str, Array]] = []
        self.scales: list[int] = []
        self.decimals = self.whole = 0
        self.flows: list[tuple[int, bool, int, int]] = []
        self.thread_names: dict[tuple[int | str, int | str], str] = {}

    def add(self, events: Events) -> None:
        """Take a piece's events: complete ones into columns, names and flows apart."""
        complete: Sequence[Any] = [e for e in events if e.ph == "X"]
        if len(complete) < len(events):
            # the other events are mostly arrows that repeat what correlations say
            self._others([e for e in events if e.ph != "X" and e.cat != "ac2g"])
        if not complete:
            return
        # operators and the rest have different arguments: each is asked for its own only
        operators = [e for e in complete if e.cat in _OPERATORS]
        others = [e for e in complete if e.cat not in _OPERATORS]
        for some, keys in ((operators, _OF_OPERATORS), (others, _OF_OTHERS)):
            self._add(some, keys)

    def _add(self, events: Sequence[Any], keys: tuple[str, ...]) -> None:
        if not events:
            return
        try:
            part = self._columns(events, keys)
        except (OverflowError, ValueError):
            events = self._bounded(events, keys)
            if not events:
                return
            part = self._columns(events, keys)
        self.parts.append(part)
        self.scales.append(1 if isinstance(events[0].ts, int) else 1000)

    def _columns(self, events: Sequence[Any], keys: tuple[str, ...]) -> dict[str, Array]:
        args = [e.args or NO_ARGS for e in events]
        found: dict[str, Array] = {}
        found["start"], found["duration"] = (self._times(events, key) for key in ("ts", "dur"))
        found["category"] = np.array(self.categories(map(attrgetter("cat"), events)), "i4")
        found["name"] = np.array(self.names(map(attrgetter("name"), events)), "i4")
        for key in keys:
            found[key] = _narrow(_integers(args, key), COLUMNS[key])
        if keys is _OF_OTHERS:
            older = _integers(args, "external_old")
            found["external"] = np.where(found["external"] >= 0, found["external"], older)
        found["thread"] = np.array(self.threads(map(attrgetter("pid", "tid"), events)), "i4")
        self._texts(args, found, keys)
        for key, kind in COLUMNS.items():
            if key not in found and key != "kind":
                found[key] = np.full(len(events), -1, kind)
        return found

    def _texts(self, args: Sequence[Any], found: dict[str, Array], keys: tuple[str, ...]) -> None:
        found["shape"] = found["module"] = found["collective"] = np.zeros(len(args), "i4")
        if keys is _OF_OTHERS:
            if any(map(attrgetter("collective"), args)):
                found["collective"] = np.array(self.collectives(map(_collective, args)), "i4")
            return
        found["shape"] = self._shapes(args)
        if any(map(attrgetter("hierarchy"), args)):
            modules = self.modules(map(attrgetter("hierarchy"), args))
            found["module"] = np.array(modules, "i4")

    def _shapes(self, args: Sequence[Any]) -> Array:
        """Return the numbers of operand shapes and types; 0 where an event has none."""
        dims = list(map(attrgetter("dims"), args))
        if not any(map(len, dims)):
            dims = list(map(attrgetter("dims_old"), args))
        if not any(map(len, dims)):
            return np.zeros(len(args), "i4")
        rows = [i for i, text in enumerate(dims) if len(text)]
        shapes = np.zeros(len(args), "i4")
        shapes[rows] = self.shapes((bytes(dims[i]), bytes(args[i].types)) for i in rows)
        return shapes

    def _times(self, events: Sequence[Any], key: str) -> Array:
        """Return whole times as they are, others in thousandths."""
        values = map(attrgetter(key), events)
        if isinstance(events[0], Event):
            self.whole += len(events)
            times = np.fromiter(values, "i8", len(events))
            if times.max() > _LIMIT or times.min() < -_LIMIT:
                raise OverflowError
            return times
        text = b",".join(values)
        self.decimals += text.count(b".")
        self.whole += text.count(b",") + 1 - text.count(b".")
        self.health.add("K09", text.count(b'"') // 2, "times written as text")
        return thousandths(list(map(attrgetter(key), events)))

    def _bounded(self, events: Sequence[Any], keys: tuple[str, ...]) -> list[FractionEvent]:
        """Drop events with a number that no real trace holds."""
        kept: list[Any] = []
        for event in events:
            try:
                self._columns([event], keys)
                kept.append(event)
            except (OverflowError, ValueError):
                self.health.add("K09")
        return kept

    def _others(self, events: Iterable[Event | FractionEvent]) -> None:
        skipped = 0
        for event in events:
            if not event.ph:
                self.health.add("K09", 1, "events without a type")
            elif event.ph in "sf" and event.cat != "ac2g" and event.cat.startswith("fwdbwd"):
                self._flow(event)
            elif event.ph == "M" and event.args is not None and event.name == "thread_name":
                self.thread_names[_place(event)] = event.args.name
            elif event.ph in "BE":
                skipped += 1
            elif event.ph not in _PHASES:
                self.health.add("K09", 1, "events of no known type")
        self.health.add("K05", skipped, "begin and end events, which torch does not write")

    def _flow(self, event: Event | FractionEvent) -> None:
        if not isinstance(event.id, int):
            return
        try:
            start = event.ts if isinstance(event.ts, int) else int(thousandths([event.ts])[0])
        except (OverflowError, ValueError):
            return
        thread = self.threads([(event.pid, event.tid)])[0]
        scaled = start if isinstance(event.ts, int) else start // 1000
        self.flows.append((event.id, event.ph == "s", thread, scaled))


def _place(event: Event | FractionEvent) -> tuple[int | str, int | str]:
    return (event.pid if event.pid is not None else -1, event.tid if event.tid is not None else -1)


def _integers(args: Sequence[Any], key: str) -> Array:
    """Return one argument of each event as integers; old traces name streams in words."""
    try:
        return np.fromiter(map(attrgetter(key), args), "i8", len(args))
    except (TypeError, ValueError):
        return np.fromiter(map(_integer, map(attrgetter(key), args)), "i8", len(args))


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


def _collective(args: Any) -> str:  # noqa: ANN401
    if not args.collective:
        return ""
    return f"{args.collective} {args.elements} elements over {args.group}"


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
