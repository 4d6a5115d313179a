"""Timing one call on a torch device: the op's time, and on GPUs the kernels' own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Torch = Any
WARM_UP, RUNS = 5, 25
"""Calls before and during a measurement."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What one call takes, in microseconds.

    Attributes:
        op: median time of the op from the host's or the event's view, launch included.
        spread: half the distance between the 5th and 95th percentile of ``op``.
        kernel: mean summed time of its kernels, without launches; ``None`` where the device has
            no profiler for them (``cpu`` runs no kernels apart from the op).
        kernels: their names, in order of time.
        runs: calls that were timed.
    """

    op: float
    spread: float
    kernel: float | None = None
    kernels: tuple[str, ...] = ()
    runs: int = RUNS


def measure_call(torch: Torch, device: str, call: Callable[[], object], runs: int = RUNS) -> Timing:
    """Return the timing of a call after a warm-up.

    On a GPU every run is timed with device events on an idle stream; the kernels' own times come
    from the profiler in runs of their own, so that neither measurement disturbs the other.
    """
    for _ in range(WARM_UP):
        call()
    if not device.startswith("cuda"):
        times = sorted(_host_run(call) for _ in range(runs))
        return Timing(statistics.median(times), _spread(times), runs=runs)
    times = sorted(_event_run(torch, call) for _ in range(runs))
    kernel, names = _profiled(torch, call)
    return Timing(statistics.median(times), _spread(times), kernel, names, runs)


def _host_run(call: Callable[[], object]) -> float:
    begin = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begin) / 1e3


def _event_run(torch: Torch, call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def _profiled(
    torch: Torch, call: Callable[[], object], runs: int = 5
) -> tuple[float, tuple[str, ...]]:
    activity = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[activity]) as profile:
        for _ in range(runs):
            call()
        torch.cuda.synchronize()
    rows = [e for e in profile.key_averages() if getattr(e, "self_device_time_total", 0) > 0]
    rows.sort(key=lambda e: -e.self_device_time_total)
    total = sum(float(e.self_device_time_total) for e in rows)
    return total / runs, tuple(str(e.key) for e in rows)


def _spread(times: list[float]) -> float:
    cut = statistics.quantiles(times, n=20) if len(times) > 1 else [times[0]] * 19
    return (cut[-1] - cut[0]) / 2
