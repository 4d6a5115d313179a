"""Times of single calls, measured by ``irgraph measure MODEL`` on a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from costmodels.devices.sheet import DeviceSheet
from costmodels.measure.rows import CALLS
from irgraph.diagnostics import SourceSpan, fail
from irgraph.ir.cost import CALL, Kernel
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

CallTimes: TypeAlias = Mapping[str, tuple[float, float]]
"""Microseconds and half a 90 % interval of calls, by ``call_key``."""


SOURCE = "this call, measured on this device"


def call_key(op: Op) -> str:
    """Return the key of a call's time: its name, types of operands, and other arguments.

    Numbers with a fraction are omitted: no kernel is chosen by them, and they change from step to
    step.
    """
    operands = [_sketch(value) for value in op.operands]
    choices = ((k, _sketch(v)) for k, v in op.attributes.items() if not isinstance(v, float))
    return f"{op.name}({', '.join([*operands, *(f'{k}={v}' for k, v in choices)])})"


def _sketch(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_sketch, value))}]"
    if not isinstance(value, Tensor):
        return "float" if isinstance(value, float) else str(value)
    sizes = ",".join(str(int(size)) for size in value.shape)
    strides = "" if value.contiguous else ";" + ",".join(str(int(s)) for s in value.strides or ())
    return f"{value.dtype}[{sizes}{strides}]"


def read_calls(paths: Iterable[str], sheet: DeviceSheet) -> CallTimes:
    """Return the times in files of measured calls, or in records of them (``db:NAME``).

    The last time of a call in several files counts.

    Raises ``IrgraphError`` if a file has no measurements, or was measured on another device.
    """
    from costmodels.measure.rows import read_rows
    from costmodels.measure.run import sheet_name
    from irgraph.database.references import PREFIX, read_record

    times_by_call: dict[str, tuple[float, float]] = {}
    for path in paths:
        head, rows = (
            read_record(path, "kernels")[:2] if path.startswith(PREFIX) else read_rows(path)
        )
        device = sheet_name(head)
        if device != sheet.name:
            message = f"measured on {device}, not on {sheet.name}"
            raise fail(message, SourceSpan(str(path)), exit_code=2)
        timed_rows = [row for row in rows if row["family"] == CALLS and "error" not in row]
        if timed_rows and "python_us" not in head:
            raise fail("its head lacks the time of the way to a call", SourceSpan(str(path)))
        times_by_call |= {row["key"]: _time(row, head["python_us"]) for row in timed_rows}
    return times_by_call


def _time(row: Mapping[str, float], python: float) -> tuple[float, float]:
    """Return a call's time: of its kernels on a GPU, without Python's overhead on a CPU."""
    # On a CPU the call is timed from Python: the time of a call without work is subtracted.
    if row.get("kernel_us") is None:
        return max(row["op_us"] - python, 0.0), row["spread_us"]
    return row["kernel_us"], row["kernel_spread_us"]


def with_time(op: Op, modelled: tuple[Kernel, ...], times: CallTimes) -> tuple[Kernel, ...] | None:
    """Return a leaf's measured work, ``None`` if there is none; its family is that of models."""
    if not times or op.body or (measured_time := times.get(call_key(op))) is None:
        return None
    longest = max(modelled, key=lambda k: k.time, default=Kernel(op.name, "measured", 0.0))
    time, spread = measured_time
    return as_call(
        (replace(longest, time=time, spread=spread, by="measured", outside=False, formula=SOURCE),)
    )


def as_call(kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Return the work of a call that the host runs itself, as one kernel."""
    if not kernels:
        return ()
    call = replace(
        max(kernels, key=lambda k: k.time),
        time=sum(k.time for k in kernels),
        spread=sum(k.spread for k in kernels),
        outside=any(k.outside for k in kernels),
        launch=CALL,
        link_bytes=sum(k.link_bytes for k in kernels),
        blocking=False,
    )
    return (call,)
