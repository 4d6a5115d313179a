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

_PLAIN = ("correlation", "record", "sequence", "forward", "nbytes", "wait_record", "wait_stream")
_LIMIT = 1 << 62
_PHASES = frozenset("XBEbnesftMCiIPNODSTFpRcv(){}")
"""Types of events that the trace event format has."""


class Interner:
    """Numbers distinct values in order of first use."""

    def __init__(self) -> None:
        self.table: dict[Any, int] = {}

    def __call__(self, values: Iterable[Hashable]) -> list[int]:
        """Return the number of each value."""
        table = self.table
        return [table.setdefault(value, len(table)) for value in values]


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
            self._others(e for e in events if e.ph != "X")
        if not complete:
            return
        try:
            part = self._columns(complete)
        except (OverflowError, ValueError):
            complete = self._bounded(complete)
            if not complete:
                return
            part = self._columns(complete)
        self.parts.append(part)
        self.scales.append(1 if isinstance(complete[0].ts, int) else 1000)

    def _columns(self, events: Sequence[Event | FractionEvent]) -> dict[str, Array]:
        args = [e.args or NO_ARGS for e in events]
        found: dict[str, Array] = {}
        found["start"], found["duration"] = (
            self._times([getattr(e, key) for e in events]) for key in ("ts", "dur")
        )
        categories = np.array(self.categories(map(attrgetter("cat"), events)), "i4")
        found["category"] = categories
        found["name"] = np.array(self.names(map(attrgetter("name"), events)), "i4")
        for key in _PLAIN:
            found[key] = _narrow(np.array(list(map(attrgetter(key), args)), "i8"), COLUMNS[key])
        external = np.array([a.external if a.external >= 0 else a.external_old for a in args], "i8")
        found["external"] = external
        streams, devices = (
            [v if type(v) is int else _integer(v) for v in map(attrgetter(key), args)]
            for key in ("stream", "device")
        )
        found["stream"], found["device"] = (
            _narrow(np.array(v, "i8"), t) for v, t in ((streams, "i4"), (devices, "i2"))
        )
        places = [(e.pid, e.tid) for e in events]
        found["thread"] = np.array(self.threads(places), "i4")
        self._texts(args, found)
        return found

    def _texts(self, args: Sequence[Any], found: dict[str, Array]) -> None:
        dims = [a.dims or a.dims_old for a in args]
        pairs = [(bytes(d), bytes(a.types)) if d else None for d, a in zip(dims, args, strict=True)]
        found["shape"] = np.array(self.shapes(pairs), "i4")
        found["module"] = np.array(self.modules(map(attrgetter("hierarchy"), args)), "i4")
        if any(map(attrgetter("collective"), args)):
            texts = [_collective(a) for a in args]
            found["collective"] = np.array(self.collectives(texts), "i4")
        else:
            found["collective"] = np.zeros(len(args), "i4")

    def _times(self, values: Sequence[Any]) -> Array:
        """Return whole times as they are, others in thousandths."""
        if type(values[0]) is int:
            self.whole += len(values)
            if max(values) > _LIMIT or min(values) < -_LIMIT:
                raise OverflowError
            return np.array(values, "i8")
        text = b",".join(values)
        self.decimals += text.count(b".")
        self.whole += text.count(b",") + 1 - text.count(b".")
        self.health.add("K09", text.count(b'"') // 2, "times written as text")
        return thousandths(values)

    def _bounded(self, events: Sequence[Any]) -> list[FractionEvent]:
        """Drop events with a number that no real trace holds."""
        kept: list[Any] = []
        for event in events:
            try:
                self._columns([event])
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
