"""Measures the profiler's overhead per event, from a loop with and without the profiler."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from irgraph.capture.recording.record import need_torch

CALLS, REPEATS = 2000, 7


def calibrate_profiler(device: str = "cpu") -> tuple[float, float | None]:
    """Return the profiler's overhead in microseconds per host event, and the extra per launch.

    A loop of in-place additions of one element records one operator per call, and on a CUDA device
    also one runtime call and one kernel; the host's time for it is measured with and without the
    profiler. On the CPU nothing is launched and the second figure is ``None``.

    Raises:
        IrgraphError: torch or the device is missing.
    """
    need_torch(device)
    import torch
    from torch.profiler import ProfilerActivity

    tensor = torch.zeros(1, device=device)
    wait: Callable[[], object] = torch.cuda.synchronize if tensor.is_cuda else (lambda: None)
    unprofiled = _median_call_time(tensor, wait, ())
    host = max(0.0, _median_call_time(tensor, wait, (ProfilerActivity.CPU,)) - unprofiled)
    if not tensor.is_cuda:
        return host, None
    profiled = _median_call_time(tensor, wait, (ProfilerActivity.CPU, ProfilerActivity.CUDA))
    return host, max(0.0, profiled - unprofiled - 2 * host)


def _median_call_time(tensor: Any, wait: Callable[[], object], kinds: Sequence[Any]) -> float:  # noqa: ANN401
    """Return the median microseconds per call over repeated loops."""
    from torch.profiler import profile

    times = []
    for _ in range(REPEATS):
        with profile(activities=list(kinds)) if kinds else nullcontext():
            wait()
            begin = time.perf_counter()
            for _ in range(CALLS):
                tensor.add_(1)
            times.append((time.perf_counter() - begin) / CALLS * 1e6)
            wait()
    return statistics.median(times)
