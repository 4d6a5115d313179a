"""The clock by which work of a CPU is timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def host_clock(torch: Any) -> Callable[[], int]:  # noqa: ANN401  (the module)
    """Return a clock in nanoseconds: the processor's, which other programs do not lengthen.

    Where torch computes on several threads it is the wall's, since theirs run beside each other.
    """
    return time.process_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
