"""A small, sound Kineto trace to damage: three steps of four operators with their kernels."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

START = 1_700_000_000_000_000
STEPS = 3
STEP_US = 1000
MAIN, ENGINE = 100, 101
EVALUATE = "autograd::engine::evaluate_function: AddmmBackward0"

Event = dict[str, Any]


def host(cat: str, name: str, ts: float, dur: float, tid: int = MAIN, **args: Any) -> Event:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def kernel(name: str, ts: float, dur: float, correlation: int, stream: int = 7) -> Event:
    event = host("kernel", name, ts, dur, stream, correlation=correlation, stream=stream, device=0)
    return {**event, "pid": 0}


def operator(name: str, at: int, number: int, tid: int = MAIN, **args: Any) -> list[Event]:
    """Return an operator of 50 us that launches a kernel of 100 us behind 20 us."""
    shapes = {"Input Dims": [[8, 16], [16, 4]], "Input type": ["float", "float"]}
    return [
        host("cpu_op", name, at, 50, tid, **{"External id": number, **shapes, **args}),
        host("cuda_runtime", "cudaLaunchKernel", at + 20, 10, tid, correlation=number),
        kernel(
            f"void {name.replace('::', '_')}_kernel()", at + 40 + 60 * (number % 2), 100, number
        ),
    ]


def events() -> list[Event]:
    """Return the events of the sound trace."""
    found: list[Event] = []
    for step in range(STEPS):
        at = START + step * (STEP_US + 10)
        found.append(host("user_annotation", f"ProfilerStep#{step + 5}", at, STEP_US))
        number = 10 * step + 1
        found += operator("aten::linear", at + 10, number, **{"Sequence number": number})
        found += operator("aten::relu", at + 200, number + 1)
        backward = {"Sequence number": number, "Fwd thread id": 1}
        found += operator(EVALUATE, at + 400, number + 2, ENGINE, **backward)
        found += operator("aten::add_", at + 700, number + 3)
    return found


def numbered(found: list[Event]) -> list[Event]:
    """Number the host's records, as torch does since 1.13, and add the span that was recorded."""
    records = (e for e in found if e["cat"] in ("cpu_op", "user_annotation"))
    for number, record in enumerate(records):
        record["args"]["Ev Idx"] = number
    end = max(event["ts"] + event["dur"] for event in found)
    return [*found, host("Trace", "PyTorch Profiler (0)", START - 200, end + 230 - START)]


def text(found: Sequence[Event], indent: bool = True, **header: Any) -> str:
    """Return a trace's text, laid out as Kineto does or on one line."""
    trace = {"schemaVersion": 1, **header}
    if not indent:
        return json.dumps({**trace, "traceEvents": list(found), "traceName": "x.json"})
    body = ",\n".join("  " + json.dumps(e, indent=2).replace("\n", "\n  ") for e in found)
    head = json.dumps(trace)[:-1]
    return f'{head},\n  "traceEvents": [\n{body}\n  ],\n  "traceName": "x.json"\n}}\n'


def write(
    folder: Path,
    change: Callable[[list[Event]], list[Event] | None] | None = None,
    name: str = "trace.json",
    **header: Any,
) -> Path:
    """Write the trace, changed, and return its path."""
    found = events()
    if change is not None:
        found = change(found) or found
    path = folder / name
    path.write_text(text(found, **header))
    return path
