"""A trace in memory: one array for each property of its events."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from irgraph.capture.kineto.reading.health import Health

Array: TypeAlias = npt.NDArray[Any]
Integers: TypeAlias = npt.NDArray[np.int64]


class EventKind(IntEnum):
    """What an event is, whatever its era and vendor call it."""

    OP = 0
    ANNOTATION = 1
    RUNTIME = 2
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5
    SYNC = 6
    GPU_ANNOTATION = 7
    PYTHON = 8
    OVERHEAD = 9
    OTHER = 10


DEVICE_WORK = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET)
"""Kinds of events that are work of a device."""

COLUMNS = {
    "kind": "u1", "name": "i4", "thread": "i4", "start": "i8", "duration": "i8",
    "correlation": "i8", "external": "i8", "record": "i8", "sequence": "i8", "forward": "i4",
    "stream": "i4", "device": "i2", "nbytes": "i8", "shape": "i4", "module": "i4",
    "collective": "i4", "wait_record": "i8", "wait_stream": "i4",
}  # fmt: skip
"""The properties of an event and their types; -1 stands for absent.

Times are in nanoseconds from ``KinetoTrace.base``; ``name``, ``thread``, ``shape``, ``module`` and
``collective`` are positions in the lists of the trace."""

ABSENT = {"shape": 0, "module": 0, "collective": 0}
"""What stands for absent in columns of positions; the first text of those lists is empty."""


def operands(dims: bytes, types: bytes) -> tuple[list[Any], list[str]] | None:
    """Return the shapes and types of a call's arguments, ``None`` where they make no sense."""
    try:
        shapes, kinds = msgspec.json.decode(dims or b"[]"), msgspec.json.decode(types or b"[]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(shapes, list) or not isinstance(kinds, list):
        return None
    return shapes, [kind if isinstance(kind, str) else "" for kind in kinds]


class Collective(NamedTuple):
    """What NCCL's metadata says of a collective.

    Attributes:
        group: its process group, name and ranks; ``""`` where it is not named.
        name: of the collective.
        sent, received: elements of operand and result, -1 if absent.
        dtype: element type, as ``c10::toString`` calls it.
        size: ranks in the group, -1 if absent.
    """

    group: str = ""
    name: str = ""
    sent: int = -1
    received: int = -1
    dtype: str = ""
    size: int = -1


class MemoryChange(NamedTuple):
    """A change of memory: when, on which thread and device, and by how much.

    Attributes:
        thread: number of the host thread.
        start: nanoseconds, as ``start`` of events.
        device_type: 0 for the host, 1 for CUDA, as ``c10::DeviceType``.
        device: its index, -1 of the host.
        nbytes: bytes allocated, negative where they are freed.
        allocated, reserved: bytes in all after it, -1 where the trace does not say.
    """

    thread: int
    start: int
    device_type: int
    device: int
    nbytes: int
    allocated: int
    reserved: int


NO_COLLECTIVE = Collective()

_STEP_NAME = re.compile(r"ProfilerStep#(\d{1,18})$", re.ASCII)


@dataclass(slots=True)
class KinetoTrace:
    """One rank's trace.

    Attributes:
        source: the file.
        columns: arrays by the keys of ``COLUMNS``, one element for each complete event, in order
            of start times, outer events before inner ones.
        names: texts of ``name``.
        threads: (process, thread) of ``thread``; for device events (device, stream).
        shapes: (dims, types) of ``shape`` as JSON text.
        modules, collectives: what those columns stand for.
        base: nanoseconds since 1970 (or since whatever the trace counts from) of time 0.
        header: what the file says beside the events: devices, rank, versions.
        thread_names: names that the trace gives to threads.
        health: what was found while reading.
        forward_links: by row of a backward operator, the forward one that an arrow leads from.
        memory: a row for each field of ``MemoryChange``, its columns in order of time.
    """

    source: str
    columns: dict[str, Array]
    names: list[str]
    threads: list[tuple[int | str, int | str]]
    shapes: list[tuple[bytes, bytes]]
    modules: list[str]
    collectives: list[Collective]
    base: int
    header: Mapping[str, Any]
    thread_names: dict[tuple[int | str, int | str], str]
    health: Health
    forward_links: dict[int, int] = field(default_factory=dict)
    memory: Array = field(default_factory=lambda: np.zeros((len(MemoryChange._fields), 0), "i8"))

    def __len__(self) -> int:
        return len(self.columns["start"])

    @property
    def end(self) -> Integers:
        """Nanoseconds at which each event ends."""
        ends: Integers = self.columns["start"] + self.columns["duration"]
        return ends

    @property
    def on_device(self) -> npt.NDArray[np.bool_]:
        """Which events are work of a device."""
        return np.isin(self.columns["kind"], DEVICE_WORK)

    @property
    def rank(self) -> int:
        """The rank that the trace names, 0 if it names none."""
        info = self.header.get("distributedInfo")
        rank = info.get("rank") if isinstance(info, dict) else None
        return rank if isinstance(rank, int) else 0

    @property
    def device_name(self) -> str:
        """Name of the first device, ``""`` where the trace lists none."""
        devices = self.header.get("deviceProperties")
        if isinstance(devices, list) and devices and isinstance(devices[0], dict):
            return str(devices[0].get("name", ""))
        return ""

    def steps(self) -> dict[int, int]:
        """Return the row of each profiler step by its number, in order of time."""
        numbers = {i: m.group(1) for i, n in enumerate(self.names) if (m := _STEP_NAME.match(n))}
        rows = np.flatnonzero(
            np.isin(self.columns["name"], list(numbers))
            & (self.columns["kind"] == EventKind.ANNOTATION)
        )
        row_by_number: dict[int, int] = {}
        for row in rows.tolist():
            row_by_number.setdefault(int(numbers[int(self.columns["name"][row])]), row)
        return row_by_number

    def memory_changes(self) -> Iterator[MemoryChange]:
        """Yield the changes of memory in order of time."""
        yield from map(MemoryChange._make, self.memory.T.tolist())

    def text(self, row: int) -> str:
        """Return an event's name."""
        return self.names[int(self.columns["name"][row])]

    def rows(self, *kinds: EventKind) -> Iterator[int]:
        """Yield the rows of some kinds in order of time."""
        yield from np.flatnonzero(np.isin(self.columns["kind"], kinds)).tolist()
