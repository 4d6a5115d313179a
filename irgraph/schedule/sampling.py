"""Uncertainty of a step time: Monte Carlo over the times of kernels and host overheads.

Kernels: errors within a family are fully correlated, those of different families independent; a
kernel's spread is half a 90 % interval of a normal distribution. Host times: every occurrence of
an operation varies by the table's standard deviation for it (log-normal), each kind of overhead as
a whole by ``TABLE_STD``, and all of them together by ``WORKLOAD_STD``. Errors of a category's
figures, for operations not in the table, are common to all their occurrences.
"""

from __future__ import annotations

import zlib
from collections import Counter

import numpy as np

from irgraph.ir.cost import Host
from irgraph.schedule.sensitivity import CELLS
from irgraph.schedule.tasks import Floats, run_many
from irgraph.schedule.timeline import Intervals, Timeline

TABLE_STD = 0.06
"""Relative standard deviation of a host's mean overheads between workloads: of the mean T1 over the
twelve workloads of the paper's Figure 7."""

WORKLOAD_STD = 0.1
"""Relative standard deviation of all host times of a step, from what a table says to what the step
takes that is not in it: with overheads of their own the host times of the eight steps of DLRM are
0.90 to 1.06 of those with shared ones, which are means over them too; the means of its two models
differ by 8 %, and those of image classifiers by half."""

NORMAL_90 = 1.6449
"""Half a 90 % interval of a normal distribution, in standard deviations."""

DRAWS = 400
"""Samples of a step: the ends of a 90 % interval are then known to about 3 % of its width."""


def sample_steps(
    timeline: Timeline, host: Host, *, draws: int = DRAWS, jitter: bool = True
) -> Floats:
    """Return step times in microseconds under ``draws`` draws, ``float64[draws]``.

    Draws are the same for every timeline: those of two steps may be subtracted one by one.
    Without ``jitter`` occurrences of an operation do not vary independently, as for a mean over
    many steps. Shared resources keep the slowdown that they have at the expected times.
    """
    columns = timeline.columns
    if not len(columns):
        return np.zeros(draws)
    width = max(1, CELLS // len(columns))
    model = _Model(columns, host, jitter)
    parts = []
    for at in range(0, draws, width):
        lengths = model.draw(at, min(width, draws - at))
        parts.append(run_many(columns.tasks, lengths).max(axis=0))
    return np.concatenate(parts)


def interval(samples: Floats, share: float = 0.9) -> tuple[float, float]:
    """Return the middle ``share`` of samples: its lower and its upper end."""
    low, high = np.quantile(samples, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


class _Model:
    """Uncertainties of a step's tasks, and draws from them."""

    def __init__(self, columns: Intervals, host: Host, jitter: bool) -> None:
        self.tasks = columns.tasks
        self.length = columns.end - columns.start
        known = columns.kernels
        self.jitter = jitter
        kernel = np.array([k.spread / NORMAL_90 for k in known] or [0.0])
        self.spread = np.where(self.tasks.having("kernel"), kernel[self.tasks.kernel], 0.0)
        families = sorted({k.family for k in known})
        number = np.array([families.index(k.family) for k in known] or [0])
        self.families = families
        self.family = number[self.tasks.kernel]
        self.relative, self.alike = _host_std(columns, host)

    def draw(self, seed: int, draws: int) -> Floats:
        """Return lengths of all tasks, ``float64[n, draws]``."""
        work = np.flatnonzero(self.spread)
        lengths = np.repeat(self.length[:, None], draws, axis=1)
        if len(work):
            errors = np.stack([_normal(f"family {name}", seed, draws) for name in self.families])
            lengths[work] += self.spread[work, None] * errors[self.family[work]]
        workload = WORKLOAD_STD * _normal("host", seed, draws)
        for code, cause in enumerate(self.tasks.causes):
            mine = np.flatnonzero((self.tasks.cause == code) & (self.relative > 0.0))
            if len(mine):
                common = np.exp(TABLE_STD * _normal(cause, seed, draws) + workload)
                lengths[mine] *= common * self._occurrences(cause, mine, seed, draws)
        return np.maximum(lengths, 0.0, out=lengths)

    def _occurrences(self, cause: str, mine: np.ndarray, seed: int, draws: int) -> Floats:
        """Return log-normal factors with mean one, the same for occurrences with a common error."""
        sigma = np.sqrt(np.log1p(self.relative[mine] ** 2))
        alike = self.alike[mine]
        normal = np.zeros((len(mine), draws))
        if self.jitter:
            normal = _generator(f"{cause} alone", seed).standard_normal((len(mine), draws))
        for group in sorted(set(alike[alike >= 0].tolist())):
            normal[alike == group] = _normal(f"{cause} {group}", seed, draws)
        sigma = np.where(self.jitter | (alike >= 0), sigma, 0.0)[:, None]
        factors: Floats = np.exp(sigma * normal - sigma**2 / 2)
        return factors


def _host_std(columns: Intervals, host: Host) -> tuple[Floats, np.ndarray]:
    """Return each task's relative standard deviation of host time, and its group of common error.

    Groups are of operations whose own figures the table lacks; -1 for none.
    """
    tasks = columns.tasks
    launches = Counter(tasks.op[tasks.having("T4")].tolist())
    relative = np.zeros(len(tasks))
    alike = np.full(len(tasks), -1)
    known: dict[int, tuple[dict[str, float], int]] = {}
    for number, op in enumerate(columns.ops):
        costs = host.overheads(op, launches[number])
        group = -1 if costs.level.startswith("op") else zlib.crc32(op.name.encode())
        known[number] = ({c: v for c, v in costs.std.items() if v > 0.0}, group)
    for at, (op, cause) in enumerate(zip(tasks.op.tolist(), tasks.cause.tolist(), strict=True)):
        found, group = known.get(op, ({}, -1))
        name = tasks.causes[cause]
        if name in found:
            relative[at] = found[name]
            alike[at] = group if name in ("T2", "T3", "T5") else -1
    return relative, alike


def _generator(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(name.encode()), seed])


def _normal(name: str, seed: int, draws: int) -> Floats:
    return _generator(name, seed).standard_normal(draws)
