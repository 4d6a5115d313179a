"""Interval of a step that is replayed with the host times of another trace: Monte Carlo.

No parameter was fitted to replays. All host times together vary between programs on one host
by ``WORKLOAD_STD``, each kind of overhead by ``TABLE_STD`` (both from published overheads of other
programs, see ``irgraph.schedule.sampling``), and each operation as its samples in the other trace
do. If host times are scaled by the ratio of launch times, one ratio applies to all of them: its
deviation is chosen so that no scaling is at an end of its 90 % interval. Between two machines the
spread between machines comes on top (``irgraph.overheads``). Device work and data
loading are as measured, and do not vary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from irgraph.overheads.samples import HostSample
from irgraph.replay.host_times import HostTimes, is_loading
from irgraph.schedule.sampling import DEFAULT_DRAWS, NORMAL_90, TABLE_STD, WORKLOAD_STD, interval
from irgraph.schedule.tasks import Floats, Tasks, last_ends

SEED = 0


def step_interval(
    tasks: Tasks, final: int, sample_of_task: Mapping[int, HostSample], host_times: HostTimes
) -> tuple[float, float]:
    """Return the middle 90 % of the times at which a task may end, in microseconds.

    Args:
        tasks: of a step.
        final: the one that ends the step.
        sample_of_task: sample of each task of host time.
        host_times: of another trace.
    """
    draws = _HostTimeDraws(host_times)

    def durations() -> Iterator[Floats | float]:
        for task, length in enumerate(tasks.length.tolist()):
            yield (
                length * draws.factors_of(sample_of_task[task])
                if task in sample_of_task
                else length
            )

    return interval(last_ends(tasks, durations(), DEFAULT_DRAWS, task=final))


class _HostTimeDraws:
    """Factors of host times, ``float64[DRAWS]`` each."""

    def __init__(self, host_times: HostTimes) -> None:
        self.host_times = host_times
        self.random = np.random.default_rng(SEED)
        scale = abs(math.log(host_times.scale)) / NORMAL_90 if host_times.scale > 0.0 else 0.0
        host_std = math.hypot(WORKLOAD_STD, scale, host_times.machine_std)
        self.host = np.exp(host_std * self._normal())
        self.kinds: dict[str, Floats] = {}
        self.keys: dict[tuple[tuple[str, str, str], str], Floats] = {}

    def factors_of(self, sample: HostSample) -> Floats:
        """Return the factors of one sample's time."""
        if is_loading(sample) or self.host_times.similar_samples(sample).level == "measured":
            return np.ones(DEFAULT_DRAWS)
        spread = self.host_times.relative_deviation(sample)
        key = (sample.key, sample.shape)
        if key not in self.keys:
            self.keys[key] = self._log_normal(spread.common)
        factors = self.keys[key] * self._log_normal(spread.individual)
        return (
            factors
            if sample.kind == "wait"
            else factors * self.host * self._kind_factors(sample.kind)
        )

    def _kind_factors(self, kind: str) -> Floats:
        if kind not in self.kinds:
            self.kinds[kind] = np.exp(TABLE_STD * self._normal())
        return self.kinds[kind]

    def _log_normal(self, relative: float) -> Floats:
        """Return log-normal factors of mean one and a relative standard deviation."""
        variance = math.log1p(relative**2)
        factors: Floats = np.exp(math.sqrt(variance) * self._normal() - variance / 2)
        return factors

    def _normal(self) -> Floats:
        return self.random.standard_normal(DEFAULT_DRAWS)
