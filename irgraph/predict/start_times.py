"""Start times of ranks: a fixed time or a distribution for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from irgraph.diagnostics import fail
from irgraph.diagnostics.quantities import parse_time
from irgraph.schedule.tasks import Floats

ALL_RANKS = "all"
DISTRIBUTIONS = {"exponential": 1, "normal": 2, "uniform": 2}
"""Number of parameters of each distribution: mean; mean and deviation; minimum and maximum."""


class StartTime(Struct, frozen=True):
    """Start time of one rank, in microseconds after the first.

    Attributes:
        distribution: a name of ``DISTRIBUTIONS``, ``""`` for a fixed time.
        parameters: parameters of the distribution, or the fixed time.
    """

    distribution: str = ""
    parameters: tuple[float, ...] = (0.0,)

    @property
    def mean(self) -> float:
        """The mean, before negative draws are clipped to 0."""
        return sum(self.parameters) / 2 if self.distribution == "uniform" else self.parameters[0]

    def draws(self, count: int, generator: np.random.Generator) -> Floats:
        """Return ``count`` random start times, clipped at 0."""
        if not self.distribution:
            return np.full(count, self.parameters[0])
        samples: Floats = getattr(generator, self.distribution)(*self.parameters, count)
        return np.maximum(samples, 0.0)


def parse_start_times(items: Sequence[str], count: int) -> list[StartTime]:
    """Parse the start time of each rank, such as ``7=7.5ms`` and ``all=normal:2ms,500us``.

    Ranks without an item start as ``all`` specifies, or at 0. Raises ``IrgraphError`` (exit code
    2) for an unknown rank or distribution, an invalid time, or a rank given twice.
    """
    by_rank: dict[str, StartTime] = {}
    for item in items:
        rank, _, text = item.partition("=")
        if rank not in (ALL_RANKS, *map(str, range(count))):
            raise fail(f"--late: there is no rank {rank!r} among {count} models", exit_code=2)
        if rank in by_rank:
            raise fail(f"--late: rank {rank} is given twice: name each rank once", exit_code=2)
        by_rank[rank] = _parse_start_time(text, f"--late {rank}")
    return [by_rank.get(str(rank), by_rank.get(ALL_RANKS, StartTime())) for rank in range(count)]


def _parse_start_time(text: str, option: str) -> StartTime:
    distribution, colon, parameters_text = text.partition(":")
    if not colon:
        return StartTime(parameters=(parse_time(text, option),))
    if distribution not in DISTRIBUTIONS:
        names = ", ".join(DISTRIBUTIONS)
        raise fail(
            f"{option}: no distribution is called {distribution!r}; known: {names}", exit_code=2
        )
    parameters = tuple(
        0.0 if part == "0" else parse_time(part, option) for part in parameters_text.split(",")
    )
    if len(parameters) != DISTRIBUTIONS[distribution]:
        hint = "exponential:MEAN, normal:MEAN,DEVIATION or uniform:LEAST,GREATEST"
        raise fail(
            f"{option}: {distribution} takes {DISTRIBUTIONS[distribution]} times",
            hint=hint,
            exit_code=2,
        )
    if distribution == "uniform" and parameters[0] > parameters[1]:
        raise fail(f"{option}: uniform: the least time goes first", exit_code=2)
    return StartTime(distribution, parameters)


def draw_start_times(start_times: Sequence[StartTime], count: int, seed: int) -> Floats:
    """Return random start times of every rank, ``float64[ranks, count]``."""
    generator = np.random.default_rng(seed)
    return np.stack([start_time.draws(count, generator) for start_time in start_times])
