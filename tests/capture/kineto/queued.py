"""Traces of a made-up host with known overheads, whose driver accepts a bounded number of launches.

The host repeats one operator with one launch. Where the queue is full the launch returns ``REST``
after the device took the next kernel, as CUDA's driver does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.capture.kineto.builder import MAIN, Event, host, kernel

START = 1_000_000.0
"""Microseconds; since 1970 they would have a resolution of a quarter."""

LATENCY, REST, GAP = 3.0, 2.0, 1.0


class Host(NamedTuple):
    """Overheads in microseconds, and the number of launches that the driver accepts."""

    t1: float = 4.0
    t2: float = 10.0
    t3: float = 3.0
    t4: float = 5.0
    limit: int = 40


def queued_events(overheads: Host, lengths: Sequence[float], steps: int = 4) -> list[Event]:
    """Return the events of steps that launch kernels of some lengths."""
    events: list[Event] = []
    starts: list[float] = []
    now, device_free = START, 0.0
    for step in range(steps):
        step_start = now
        for length in lengths:
            now += overheads.t1
            op_start, launch_start = now, now + overheads.t2
            launch_end = launch_start + overheads.t4
            number = len(starts)
            if number >= overheads.limit:
                release = starts[number - overheads.limit]
                launch_end = max(launch_end, release + REST)
            start = max(launch_start + LATENCY, device_free + GAP)
            device_free = start + length
            starts.append(start)
            now = launch_end + overheads.t3
            correlation = number + 1
            launch_time = launch_end - launch_start
            launch = host(
                "cuda_runtime",
                "cudaLaunchKernel",
                launch_start,
                launch_time,
                MAIN,
                correlation=correlation,
            )
            events.append(launch)
            events.append(kernel("k", start, length, correlation))
            events.append(host("cpu_op", "aten::relu", op_start, now - op_start))
        events.append(host("user_annotation", f"ProfilerStep#{step}", step_start, now - step_start))
    return events
