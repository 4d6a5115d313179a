"""What a Kineto trace's JSON says about its device, by plain interval arithmetic.

It shares nothing with irgraph: the file is read by ``json``, times are exact fractions.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
CALLS = {"cuda_runtime", "cuda_driver", "runtime"}
HOST = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "runtime", "operator"}

Interval = tuple[Fraction | int, Fraction | int]


def read(path: Path) -> list[dict[str, Any]]:
    """Return the complete events of a file, times as exact fractions of a microsecond.

    Of a file that is cut off or has bytes that are no JSON, those are read that can be.
    """
    text = unpacked(path.read_bytes()).decode("utf-8", "replace")
    try:
        found = DECODER.decode(text)
        events = found["traceEvents"] if isinstance(found, dict) else found
    except json.JSONDecodeError:
        events = list(_one_by_one(text))
    return [e for e in events if e.get("ph") == "X" and "dur" in e]


def unpacked(data: bytes) -> bytes:
    """Return a file's text, as far as it can be unpacked."""
    return zlib.decompressobj(31).decompress(data) if data[:2] == b"\x1f\x8b" else data


def exact(time: int | Fraction | str) -> Fraction | int:
    """Return a time without rounding, also if it stands as text; whole numbers compute faster."""
    return Fraction(time) if isinstance(time, str) else time


DECODER = json.JSONDecoder(parse_float=Fraction, strict=False)


def _one_by_one(text: str) -> Iterator[dict[str, Any]]:
    at = text.find("[", text.find('"traceEvents"'))
    while (at := text.find("{", at)) >= 0:
        try:
            event, at = DECODER.raw_decode(text, at)
        except json.JSONDecodeError:
            return
        yield event


def on_device(events: Iterable[dict[str, Any]]) -> list[Interval]:
    """Return when each kernel, copy and fill ran."""
    return [
        (exact(e["ts"]), exact(e["ts"]) + exact(e["dur"]))
        for e in events
        if str(e.get("cat", "")).lower() in DEVICE
    ]


def marked(events: Iterable[dict[str, Any]]) -> dict[int, Interval]:
    """Return the profiler's steps by number."""
    return {
        int(e["name"].partition("#")[2]): (
            exact(e["ts"]),
            exact(e["ts"]) + exact(e["dur"]),
        )
        for e in events
        if str(e["name"]).startswith("ProfilerStep#")
        and not str(e.get("cat", "")).startswith("gpu")
    }


def whole(events: Iterable[dict[str, Any]]) -> Interval:
    """Return when the first host or device event begins and the last one ends."""
    times = [
        (exact(e["ts"]), exact(e["ts"]) + exact(e["dur"]))
        for e in events
        if str(e.get("cat", "")).lower() in DEVICE | HOST
    ]
    return min(a for a, _ in times), max(b for _, b in times)


def busy(intervals: Iterable[Interval], within: Interval) -> float:
    """Return microseconds of a stretch in which at least one of the intervals runs."""
    total: Fraction | int = 0
    reached = within[0]
    for start, end in sorted(intervals):
        start, end = max(start, reached), min(end, within[1])
        if end > start:
            total += end - start
            reached = end
    return float(total)


def is_work(event: dict[str, Any]) -> bool:
    """Return whether an event is a kernel, a copy or a fill."""
    return str(event.get("cat", "")).lower() in DEVICE


def is_kernel(event: dict[str, Any]) -> bool:
    """Return whether an event is a kernel."""
    return str(event.get("cat", "")).lower() == "kernel"


def talks(event: dict[str, Any]) -> bool:
    """Return whether an event is a kernel of NCCL or RCCL."""
    return is_kernel(event) and ("nccl" in event["name"].lower() or "rccl" in event["name"].lower())


def figures(events: Iterable[dict[str, Any]]) -> dict[int, dict[str, float]]:
    """Return for each marked step, or for the whole, what `analyze` shows of it in microseconds."""
    found = list(events)
    stretches = marked(found) or {0: whole(found)}
    work = [e for e in found if is_work(e)]
    parts = {
        "gpu_active_us": work,
        "compute_us": [e for e in work if is_kernel(e) and not talks(e)],
        "copies_us": [e for e in work if not is_kernel(e)],
        "communication_us": [e for e in work if talks(e)],
    }
    rows: dict[int, dict[str, float]] = {}
    for number, within in stretches.items():
        row = {name: busy(on_device(part), within) for name, part in parts.items()}
        either = busy(on_device(parts["compute_us"] + parts["communication_us"]), within)
        row["exposed_communication_us"] = either - row["compute_us"]
        row["step_us"] = float(within[1] - within[0])
        row["gpu_idle_us"] = row["step_us"] - row["gpu_active_us"]
        rows[number] = row
    return rows


def launched(events: Iterable[dict[str, Any]]) -> dict[int, tuple[float, int]]:
    """Return for each marked step, or for the whole, the work its calls launched: time and count.

    A call launches the work that has its correlation.
    """
    found = list(events)
    stretches = marked(found) or {0: whole(found)}
    calls = {
        int(e["args"]["correlation"]): exact(e["ts"])
        for e in found
        if str(e.get("cat", "")).lower() in CALLS and "correlation" in e.get("args", {})
    }
    rows = dict.fromkeys(stretches, (0.0, 0))
    for e in (e for e in found if is_work(e)):
        begun = calls.get(int(e.get("args", {}).get("correlation", -1)))
        for number, (first, last) in stretches.items():
            if begun is not None and first <= begun < last:
                time, count = rows[number]
                rows[number] = (time + float(exact(e["dur"])), count + 1)
    return rows
