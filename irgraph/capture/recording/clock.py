"""The clock for timing work on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def host_clock(torch: Any) -> Callable[[], int]:  # noqa: ANN401  (the module)
    """Return a clock in nanoseconds: the process time, which other programs do not affect.

    If torch computes on several threads it is the wall clock, since the threads run concurrently.
    """
    return time.process_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
