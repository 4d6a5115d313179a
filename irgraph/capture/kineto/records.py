"""One event of a trace as the decoder fills it; fields that nothing uses are skipped unread."""

from __future__ import annotations

from typing import Any

import msgspec

Raw = msgspec.Raw
NOTHING = msgspec.Raw()


class Args(msgspec.Struct, gc=False):
    """The arguments of an event; -1 stands for absent."""

    correlation: int = -1
    external: int = msgspec.field(name="External id", default=-1)
    external_old: int = msgspec.field(name="external id", default=-1)
    record: int = msgspec.field(name="Record function id", default=-1)
    sequence: int = msgspec.field(name="Sequence number", default=-1)
    forward: int = msgspec.field(name="Fwd thread id", default=-1)
    stream: int | str | None = -1
    device: int | str | None = -1
    nbytes: int = msgspec.field(name="bytes", default=-1)
    dims: Raw = msgspec.field(name="Input Dims", default=NOTHING)
    dims_old: Raw = msgspec.field(name="Input dims", default=NOTHING)
    types: Raw = msgspec.field(name="Input type", default=NOTHING)
    hierarchy: str = msgspec.field(name="Module Hierarchy", default="")
    wait_record: int = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=-1)
    wait_stream: int = msgspec.field(name="wait_on_stream", default=-1)
    collective: str = msgspec.field(name="Collective name", default="")
    elements: int = msgspec.field(name="In msg nelems", default=-1)
    group: int = msgspec.field(name="Group size", default=-1)
    name: str = ""


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """An event whose times are whole numbers."""

    ts: int = -1
    ph: str = "X"
    cat: str = ""
    name: str = ""
    pid: int | str | None = -1
    tid: int | str | None = -1
    dur: int = 0
    id: int | str | None = -1
    args: Args | None = None


class FractionEvent(msgspec.Struct, gc=False):
    """An event whose times are kept as text, to be read digit by digit."""

    ts: Raw = Raw(b"-1")
    ph: str = "X"
    cat: str = ""
    name: str = ""
    pid: int | str | None = -1
    tid: int | str | None = -1
    dur: Raw = Raw(b"0")
    id: int | str | None = -1
    args: Args | None = None


whole = msgspec.json.Decoder(list[Event])
fractions = msgspec.json.Decoder(list[FractionEvent])
one = msgspec.json.Decoder(FractionEvent)
raws = msgspec.json.Decoder(list[Raw])

_INTEGERS = {
    "correlation": "correlation", "External id": "external", "external id": "external",
    "Record function id": "record", "Sequence number": "sequence", "Fwd thread id": "forward",
    "stream": "stream", "device": "device", "bytes": "nbytes", "In msg nelems": "elements",
    "wait_on_cuda_event_record_corr_id": "wait_record", "wait_on_stream": "wait_stream",
    "Group size": "group",
}  # fmt: skip


def loose(fields: dict[str, Any]) -> FractionEvent | None:
    """Return an event from a decoded object of any types, ``None`` where it has no time."""
    ts, dur = _number(fields.get("ts")), _number(fields.get("dur", 0))
    if ts is None or dur is None:
        return None
    raw = fields.get("args")
    event = FractionEvent(
        Raw(ts), _text(fields.get("ph", "X")), _text(fields.get("cat")), _text(fields.get("name"))
    )
    event.pid, event.tid, event.id = (_id(fields.get(key, -1)) for key in ("pid", "tid", "id"))
    event.dur = Raw(dur)
    event.args = _loose_args(raw) if isinstance(raw, dict) else None
    return event


def _loose_args(fields: dict[str, Any]) -> Args:
    args = Args(name=_text(fields.get("name")), collective=_text(fields.get("Collective name")))
    args.hierarchy = _text(fields.get("Module Hierarchy"))
    for key, attribute in _INTEGERS.items():
        number = _number(fields.get(key))
        if number is not None and b"." not in number:
            setattr(args, attribute, int(number))
    dims = fields.get("Input Dims", fields.get("Input dims"))
    if isinstance(dims, list):
        args.dims = Raw(msgspec.json.encode(dims))
        args.types = Raw(msgspec.json.encode(fields.get("Input type", [])))
    return args


def _number(value: Any) -> bytes | None:  # noqa: ANN401
    """Return a number's text with three decimals at most, ``None`` where it is none."""
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


def _text(value: Any) -> str:  # noqa: ANN401
    return value if isinstance(value, str) else ""


def _id(value: Any) -> int | str:  # noqa: ANN401
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else -1
