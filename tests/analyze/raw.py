"""What a Kineto trace's JSON says about its device, by plain interval arithmetic.

It shares nothing with irgraph: the file is read by ``json``, times are exact fractions.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
HOST = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "runtime", "operator"}

Interval = tuple[Fraction, Fraction]


def read(path: Path) -> list[dict[str, Any]]:
    """Return the complete events of a whole file, times as exact fractions of a microsecond."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8", "replace")
    found = json.loads(text, parse_float=Fraction, parse_int=Fraction, strict=False)
    events = found["traceEvents"] if isinstance(found, dict) else found
    return [e for e in events if e.get("ph") == "X" and "dur" in e]


def on_device(events: Iterable[dict[str, Any]]) -> list[Interval]:
    """Return when each kernel, copy and fill ran."""
    return [
        (Fraction(e["ts"]), Fraction(e["ts"]) + Fraction(e["dur"]))
        for e in events
        if str(e.get("cat", "")).lower() in DEVICE
    ]


def marked(events: Iterable[dict[str, Any]]) -> dict[int, Interval]:
    """Return the profiler's steps by number."""
    return {
        int(e["name"].partition("#")[2]): (
            Fraction(e["ts"]),
            Fraction(e["ts"]) + Fraction(e["dur"]),
        )
        for e in events
        if str(e["name"]).startswith("ProfilerStep#")
        and not str(e.get("cat", "")).startswith("gpu")
    }


def whole(events: Iterable[dict[str, Any]]) -> Interval:
    """Return when the first host or device event begins and the last one ends."""
    times = [
        (Fraction(e["ts"]), Fraction(e["ts"]) + Fraction(e["dur"]))
        for e in events
        if str(e.get("cat", "")).lower() in DEVICE | HOST
    ]
    return min(a for a, _ in times), max(b for _, b in times)


def busy(intervals: Iterable[Interval], within: Interval) -> float:
    """Return microseconds of a stretch in which at least one of the intervals runs."""
    total, reached = Fraction(0), within[0]
    for start, end in sorted(intervals):
        start, end = max(start, reached), min(end, within[1])
        if end > start:
            total += end - start
            reached = end
    return float(total)
