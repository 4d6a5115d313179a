"""A trace in memory: one array for each property of its events."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import msgspec
import numpy as np
import numpy.typing as npt

from irgraph.capture.kineto.reading.health import Health
from irgraph.ir.op import Value

Array: TypeAlias = npt.NDArray[Any]
Integers: TypeAlias = npt.NDArray[np.int64]


class EventKind(IntEnum):
    """Kinds of events, independent of profiler version and vendor."""

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


HOST_KINDS = (EventKind.OP, EventKind.ANNOTATION, EventKind.RUNTIME, EventKind.PYTHON)
"""Kinds of host events, which form a tree."""

DEVICE_WORK = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET)
"""Kinds of device work."""

COLUMNS = {
    "kind": "u1", "name": "i4", "thread": "i4", "start": "i8", "duration": "i8",
    "correlation": "i8", "external": "i8", "record": "i8", "sequence": "i8", "forward": "i4",
    "stream": "i4", "device": "i2", "nbytes": "i8", "shape": "i4", "module": "i4",
    "collective": "i4", "wait_record": "i8", "wait_stream": "i4", "concrete": "i4",
    "strides": "i4", "configuration": "i4",
}  # fmt: skip
"""Properties of an event and their types; -1 marks an absent value.

Times are in nanoseconds from ``KinetoTrace.base``; ``name``, ``thread``, ``shape``, ``module``,
``collective``, ``concrete``, ``strides`` and ``configuration`` are positions in the lists of the
trace."""

MAX_ELEMENTS = 2**63 - 1
"""Largest number of elements of a tensor in torch, and its largest integer argument."""

ABSENT = {"shape": 0, "module": 0, "collective": 0, "concrete": 0, "strides": 0, "configuration": 0}
"""Absent value in columns of positions other than -1; the first entry of their lists is empty."""


def operands(dims: bytes, types: bytes) -> tuple[list[Any], list[str]] | None:
    """Return the shapes and types of a call's arguments, ``None`` if they are malformed.

    Shapes of more than ``MAX_ELEMENTS`` elements are malformed.
    """
    try:
        shapes, kinds = msgspec.json.decode(dims or b"[]"), msgspec.json.decode(types or b"[]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(shapes, list) or not isinstance(kinds, list):
        return None
    if not all(map(_is_possible, shapes)):
        return None
    return shapes, [kind if isinstance(kind, str) else "" for kind in kinds]


def _is_possible(shape: object) -> bool:
    """Return whether a tensor can have this shape; each of the shapes in a list of tensors."""
    if not isinstance(shape, list):
        return True
    shapes = [item for item in shape if isinstance(item, list)] or [shape]
    sizes = [[size for size in part if isinstance(size, int)] for part in shapes]
    return all(max([*part, math.prod(part)]) <= MAX_ELEMENTS for part in sizes)


def recorded_values(text: bytes) -> list[Value]:
    """Return the values of a call's arguments that are no tensors, from its ``Concrete Inputs``.

    Tensors, absent arguments and values of other kinds are ``None``.
    """
    try:
        values = msgspec.json.decode(text or b"[]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return [_value(value) for value in values] if isinstance(values, list) else []


def decode_value(text: bytes) -> object:
    """Return the value of a JSON text, ``None`` if it is empty or no JSON."""
    try:
        return msgspec.json.decode(text or b"null")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def stride_lists(text: bytes) -> list[list[int]]:
    """Return the strides of a call's arguments, empty lists for all but tensors."""
    try:
        return msgspec.json.decode(text or b"[]", type=list[list[int]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


def _value(value: object) -> Value:
    """Return a recorded value: a number, a truth value or a list of either."""
    if isinstance(value, str) and value in ("True", "False"):
        return value == "True"
    try:
        number = msgspec.json.decode(value) if isinstance(value, str) else value
    except (msgspec.DecodeError, RecursionError):
        return None
    if isinstance(number, list) and all(map(_is_number, number)):
        return tuple(number)
    return number if _is_number(number) else None


def _is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number that an argument of torch can have."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= MAX_ELEMENTS)


class Collective(NamedTuple):
    """Metadata of a collective from NCCL.

    Attributes:
        group: process group, its name and ranks; ``""`` if it has no name.
        name: name of the collective.
        sent, received: elements of operand and result, -1 if absent.
        dtype: element type, as spelled by ``c10::toString``.
        size: number of ranks in the group, -1 if absent.
    """

    group: str = ""
    name: str = ""
    sent: int = -1
    received: int = -1
    dtype: str = ""
    size: int = -1


class Configuration(NamedTuple):
    """Figures of a launch as JSON texts; ``b""`` if not recorded.

    Attributes:
        grid, block: numbers of blocks and of threads in a block, by axis.
        registers: of a thread.
        block_memory: bytes of shared memory of a block.
        occupancy: estimate of the achieved occupancy, in percent.
        priority: of the stream, by CUDA 13.1 and later.
        channel: number of the hardware queue, which copies and fills have as well.
        channel_type: kind of the hardware queue.
    """

    grid: bytes = b""
    block: bytes = b""
    registers: bytes = b""
    block_memory: bytes = b""
    occupancy: bytes = b""
    priority: bytes = b""
    channel: bytes = b""
    channel_type: bytes = b""


NO_CONFIGURATION = Configuration()


class MemoryChange(NamedTuple):
    """A change of memory: its time, thread, device and size.

    Attributes:
        thread: number of the host thread.
        start: nanoseconds, as ``start`` of events.
        device_type: 0 for the host, 1 for CUDA, as ``c10::DeviceType``.
        device: index of the device, -1 for the host.
        nbytes: bytes allocated, negative if they are freed.
        allocated, reserved: total bytes after the change, -1 if not recorded.
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
        modules, collectives, concretes, strides: entries of the columns ``module``,
            ``collective``, ``concrete`` and ``strides``; the last two are JSON texts.
        configurations: entries of the column ``configuration``.
        base: nanoseconds since 1970 (or since the origin of the trace's times) of time 0.
        header: metadata of the file: devices, rank, versions.
        thread_names: names of threads in the trace.
        health: findings while the trace was read.
        forward_links: by row of a backward operator, the forward operator that an arrow starts at.
        memory: a row for each field of ``MemoryChange``, its columns in order of time.
        has_old_stacks: whether operators have call stacks as text, as torch recorded in 2021.
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
    concretes: list[bytes] = field(default_factory=lambda: [b""])
    strides: list[bytes] = field(default_factory=lambda: [b""])
    configurations: list[Configuration] = field(default_factory=lambda: [NO_CONFIGURATION])
    memory: Array = field(default_factory=lambda: np.zeros((len(MemoryChange._fields), 0), "i8"))
    has_old_stacks: bool = False

    def __len__(self) -> int:
        return len(self.columns["start"])

    @property
    def end(self) -> Integers:
        """Nanoseconds at which each event ends."""
        ends: Integers = self.columns["start"] + self.columns["duration"]
        return ends

    @property
    def on_device(self) -> npt.NDArray[np.bool_]:
        """Mask of the events that are device work."""
        return np.isin(self.columns["kind"], DEVICE_WORK)

    @property
    def rank(self) -> int:
        """Rank recorded in the trace, 0 if there is none."""
        info = self.header.get("distributedInfo")
        rank = info.get("rank") if isinstance(info, dict) else None
        return rank if isinstance(rank, int) else 0

    @property
    def device_name(self) -> str:
        """Name of the first device, ``""`` if the trace lists none."""
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
        """Yield the rows of the given kinds in order of time."""
        yield from np.flatnonzero(np.isin(self.columns["kind"], kinds)).tolist()
