"""Decoders of trace events into structs; fields without a struct member are skipped unread."""

from __future__ import annotations

import json
from functools import reduce
from operator import or_
from typing import Any, ClassVar, TypeAlias

import msgspec

Raw = msgspec.Raw
AnyRecord: TypeAlias = Any
"""An event of any of the classes below, or its arguments."""

NO_TEXT = msgspec.Raw()

NO_TIME = msgspec.Raw(b"-1")
"""Time of an event that has none."""

PHASES = "XBEbnesftMCiIPNODSTFpRcv(){}"
"""Event types of the trace event format."""

ARROW, METADATA, INSTANT, REST = "\0arrow", "\0metadata", "\0instant", "\0rest"
"""Category of events that are not complete events."""


class Args(msgspec.Struct, gc=False, frozen=True):
    """Arguments of an event; -1 marks an absent one.

    The most frequent come first: the decoder compares every key of the text with these in turn.
    """

    external: int = msgspec.field(name="External id", default=-1)
    correlation: int = -1
    device: int | str | None = -1
    stream: int | str | None = -1
    record: int = msgspec.field(name="Record function id", default=-1)
    sequence: int = msgspec.field(name="Sequence number", default=-1)
    forward: int = msgspec.field(name="Fwd thread id", default=-1)
    dims: Raw = msgspec.field(name="Input Dims", default=NO_TEXT)
    types: Raw = msgspec.field(name="Input type", default=NO_TEXT)
    concrete: Raw = msgspec.field(name="Concrete Inputs", default=NO_TEXT)
    strides: Raw = msgspec.field(name="Input Strides", default=NO_TEXT)
    nbytes: int | str | None = msgspec.field(name="bytes", default=-1)
    hierarchy: str = msgspec.field(name="Module Hierarchy", default="")
    wait_record: int = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=-1)
    wait_stream: int = msgspec.field(name="wait_on_stream", default=-1)
    collective: str = msgspec.field(name="Collective name", default="")
    elements: int = msgspec.field(name="In msg nelems", default=-1)
    group: int = msgspec.field(name="Group size", default=-1)
    group_name: str = msgspec.field(name="Process Group Name", default="")
    group_ranks: str = msgspec.field(name="Process Group Ranks", default="")
    external_old: int = msgspec.field(name="external id", default=-1)
    received: int = msgspec.field(name="Out msg nelems", default=-1)
    dtype: str = ""
    dims_old: Raw = msgspec.field(name="Input dims", default=NO_TEXT)
    index: int = msgspec.field(name="Ev Idx", default=-1)
    name: str = ""
    stack: Raw = msgspec.field(name="Call stack", default=NO_TEXT)
    grid: Raw = NO_TEXT
    block: Raw = NO_TEXT
    registers: Raw = msgspec.field(name="registers per thread", default=NO_TEXT)
    block_memory: Raw = msgspec.field(name="shared memory", default=NO_TEXT)
    occupancy: Raw = msgspec.field(name="est. achieved occupancy %", default=NO_TEXT)
    priority: Raw = NO_TEXT
    channel: Raw = NO_TEXT
    channel_type: Raw = NO_TEXT


NO_ARGS = Args()


class MemoryArgs(msgspec.Struct, gc=False, frozen=True):
    """Arguments of a change of memory, in bytes; old traces have no totals."""

    nbytes: int = msgspec.field(name="Bytes", default=0)
    device_type: int = msgspec.field(name="Device Type", default=-1)
    device: int = msgspec.field(name="Device Id", default=-1)
    allocated: int = msgspec.field(name="Total Allocated", default=-1)
    reserved: int = msgspec.field(name="Total Reserved", default=-1)
    index: int = msgspec.field(name="Ev Idx", default=-1)


NO_MEMORY = MemoryArgs()


class Event(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A complete event with integer times."""

    ph: ClassVar[str] = "X"
    ts: int = -1
    cat: str = ""
    name: str = ""
    pid: int | str | None = -1
    tid: int | str | None = -1
    dur: int = -1
    args: Args = NO_ARGS


class FloatEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A complete event with times as 64-bit floats, which are exact to 1 ns below 2**43 us."""

    ph: ClassVar[str] = "X"
    ts: float = -1.0
    cat: str = ""
    name: str = ""
    pid: int | str | None = -1
    tid: int | str | None = -1
    dur: float = -1.0
    args: Args = NO_ARGS


class FractionEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A complete event with times as text, which is parsed exactly later."""

    ph: ClassVar[str] = "X"
    ts: Raw = NO_TIME
    cat: str = ""
    name: str = ""
    pid: int | str | None = -1
    tid: int | str | None = -1
    dur: Raw = Raw(b"-1")
    args: Args = NO_ARGS


class ShortEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A complete event with its start as text, and its duration as a float."""

    ph: ClassVar[str] = "X"
    ts: Raw = NO_TIME
    cat: str = ""
    name: str = ""
    pid: int | str | None = -1
    tid: int | str | None = -1
    dur: float = -1.0
    args: Args = NO_ARGS


class AnyEvent(msgspec.Struct, gc=False):
    """An event of any type, for texts that are decoded event by event."""

    ts: Raw = NO_TIME
    ph: str = "X"
    cat: str = ""
    name: str = ""
    pid: int | str | None = -1
    tid: int | str | None = -1
    dur: Raw = Raw(b"-1")
    id: int | str | None = -1
    args: Args = NO_ARGS


def _decoder(complete: type, time: type, default: float | Raw) -> msgspec.json.Decoder[Any]:
    """Return a decoder of lists of events with one struct for each event type."""
    place = [("pid", int | str | None, -1), ("tid", int | str | None, -1)]
    arrow_category = ("arrow", str, msgspec.field(name="cat", default=""))
    arrow = [arrow_category, ("id", int | str | None, -1), *place, ("ts", time, default)]
    metadata = [("name", str, ""), *place, ("args", Args, NO_ARGS)]
    args = ("args", MemoryArgs, NO_MEMORY)
    layouts: dict[str, tuple[str, list[Any]]] = {
        "s": (ARROW, arrow),
        "f": (ARROW, arrow),
        "M": (METADATA, metadata),
        "i": (INSTANT, [("name", str, ""), *place, ("ts", time, default), args]),
    }
    kinds = [complete]
    for number, phase in enumerate(PHASES.replace("X", "")):
        cat, fields = layouts.get(phase, (REST, []))
        attributes = {"ph": phase, "cat": cat}
        kinds.append(
            msgspec.defstruct(
                f"Event{number}", fields, tag_field="ph", tag=phase, gc=False, namespace=attributes
            )
        )
    return msgspec.json.Decoder(list[reduce(or_, kinds)])  # type: ignore[misc]


integer_decoder = _decoder(Event, int, 0)
float_decoder = _decoder(FloatEvent, float, 0.0)
short_decoder = _decoder(ShortEvent, Raw, Raw(b"0"))
fraction_decoder = _decoder(FractionEvent, Raw, Raw(b"0"))
event_decoder = msgspec.json.Decoder(AnyEvent)
raw_decoder = msgspec.json.Decoder(list[Raw])

_INTEGERS = {
    "correlation": "correlation", "External id": "external", "external id": "external",
    "Record function id": "record", "Sequence number": "sequence", "Fwd thread id": "forward",
    "stream": "stream", "device": "device", "bytes": "nbytes", "In msg nelems": "elements",
    "Out msg nelems": "received",
    "wait_on_cuda_event_record_corr_id": "wait_record", "wait_on_stream": "wait_stream",
    "Group size": "group", "Ev Idx": "index",
}  # fmt: skip


_CONFIGURATION = {
    "grid": "grid", "block": "block", "registers per thread": "registers",
    "shared memory": "block_memory", "est. achieved occupancy %": "occupancy",
    "priority": "priority", "channel": "channel", "channel_type": "channel_type",
}  # fmt: skip


def lenient_event(fields: dict[str, Any]) -> AnyEvent | None:
    """Return an event from a JSON object with values of any type, ``None`` if it has no time."""
    ts, dur = _number(fields.get("ts")), _number(fields.get("dur", -1))
    if ts is None or dur is None:
        return None
    raw = fields.get("args")
    event = AnyEvent(
        Raw(ts), _text(fields.get("ph", "X")), _text(fields.get("cat")), _text(fields.get("name"))
    )
    event.pid, event.tid, event.id = (_id(fields.get(key, -1)) for key in ("pid", "tid", "id"))
    event.dur = Raw(dur)
    event.args = _lenient_args(raw) if isinstance(raw, dict) else NO_ARGS
    return event


def _lenient_args(fields: dict[str, Any]) -> Args:
    attributes: dict[str, Any] = {
        "name": _text(fields.get("name")),
        "dtype": _text(fields.get("dtype")),
        "collective": _text(fields.get("Collective name")),
        "group_name": _text(fields.get("Process Group Name")),
        "group_ranks": _text(fields.get("Process Group Ranks")),
        "hierarchy": _text(fields.get("Module Hierarchy")),
    }
    for key, attribute in _INTEGERS.items():
        number = _number(fields.get(key))
        if number is not None and b"." not in number:
            attributes[attribute] = int(number)
    dims = fields.get("Input Dims", fields.get("Input dims"))
    if isinstance(dims, list):
        attributes["dims"] = Raw(json.dumps(dims).encode())
        attributes["types"] = Raw(json.dumps(fields.get("Input type", [])).encode())
        attributes["concrete"] = Raw(json.dumps(fields.get("Concrete Inputs", [])).encode())
        attributes["strides"] = Raw(json.dumps(fields.get("Input Strides", [])).encode())
    for key, attribute in _CONFIGURATION.items():
        if key in fields:
            attributes[attribute] = Raw(json.dumps(fields[key]).encode())
    if "Call stack" in fields:
        attributes["stack"] = Raw(b'""')
    return Args(**attributes)


def is_complete(fields: dict[str, Any]) -> bool:
    """Return whether ``lenient_event`` reads every time and argument of an event exactly.

    Numbers written as text are exact, as ROCm's profiler writes ``"bytes": "9216"``.
    """
    if any(isinstance(fields.get(key), str) for key in ("ts", "dur")):
        return False
    raw = fields.get("args")
    arguments = raw if isinstance(raw, dict) else {}
    numbers = [_number(arguments[key]) for key in _INTEGERS if arguments.get(key) is not None]
    texts = [fields.get(key, "") for key in ("ph", "cat", "name")]
    return all(n is not None and b"." not in n for n in numbers) and all(
        isinstance(text, str) for text in texts
    )


def _number(value: object) -> bytes | None:
    """Return the text of a number with at most three decimals, ``None`` for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = int(value) if isinstance(value, (int, str)) else value
    except ValueError:
        try:
            number = float(value)
        except ValueError:
            return None
    if number != number or abs(number) > 2**62:
        return None
    return (str(number) if isinstance(number, int) else f"{number:.3f}").encode()


def _text(value: object) -> str:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _id(value: object) -> int | str:
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else -1
