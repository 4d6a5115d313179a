"""Interval of a step that is replayed with the host times of another trace: Monte Carlo.

Nothing of it was fitted to replays. All host times together vary between programs on one host
by ``WORKLOAD_STD``, each kind of overhead by ``TABLE_STD`` (both from published overheads of other
programs, see ``irgraph.schedule.sampling``), each operation by what its samples in the other trace
say. Where host times are scaled by the ratio of launch times, that ratio is one figure for all: its
deviation is such that no scaling at all lies at an end of its own 90 % interval. Device work and
data loading are as measured, and do not vary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from irgraph.overheads.samples import Sample
from irgraph.replay.host_times import Lengths, is_loading
from irgraph.schedule.sampling import DRAWS, NORMAL_90, TABLE_STD, WORKLOAD_STD, interval
from irgraph.schedule.tasks import Floats, Tasks, last_ends

SEED = 0


def step_interval(
    tasks: Tasks, final: int, charged: Mapping[int, Sample], lengths: Lengths
) -> tuple[float, float]:
    """Return the middle 90 % of the times at which a task may end, in microseconds.

    Args:
        tasks: of a step.
        final: the one that ends the step.
        charged: what host time stands for, by task.
        lengths: host times of another trace.
    """
    draws = _Draws(lengths)

    def drawn() -> Iterator[Floats | float]:
        for task, length in enumerate(tasks.length.tolist()):
            yield length * draws.of(charged[task]) if task in charged else length

    return interval(last_ends(tasks, drawn(), DRAWS, of=final))


class _Draws:
    """Factors of host times, ``float64[DRAWS]`` each."""

    def __init__(self, lengths: Lengths) -> None:
        self.lengths = lengths
        self.random = np.random.default_rng(SEED)
        scale = abs(math.log(lengths.scale)) / NORMAL_90 if lengths.scale > 0.0 else 0.0
        self.host = np.exp(math.hypot(WORKLOAD_STD, scale) * self._normal())
        self.kinds: dict[str, Floats] = {}
        self.keys: dict[tuple[tuple[str, str, str], str], Floats] = {}

    def of(self, sample: Sample) -> Floats:
        """Return the factors of one sample's time."""
        if is_loading(sample) or self.lengths.alike(sample).level == "measured":
            return np.ones(DRAWS)
        spread = self.lengths.spread(sample)
        key = (sample.key, sample.shape)
        if key not in self.keys:
            self.keys[key] = self._around_one(spread.common)
        factors = self.keys[key] * self._around_one(spread.alone)
        return factors if sample.kind == "wait" else factors * self.host * self._kind(sample.kind)

    def _kind(self, kind: str) -> Floats:
        if kind not in self.kinds:
            self.kinds[kind] = np.exp(TABLE_STD * self._normal())
        return self.kinds[kind]

    def _around_one(self, relative: float) -> Floats:
        """Return log-normal factors of mean one and a relative standard deviation."""
        variance = math.log1p(relative**2)
        found: Floats = np.exp(math.sqrt(variance) * self._normal() - variance / 2)
        return found

    def _normal(self) -> Floats:
        return self.random.standard_normal(DRAWS)
