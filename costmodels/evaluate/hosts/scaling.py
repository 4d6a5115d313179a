"""Powers of the ratio of launch times that carry a host table to other machines.

Each type of overhead has its power: the slope of its times against launch times over
machines, in logarithms, through the table's own machine. Slopes are fitted robustly (Huber), since
some machines are crowded. They are hierarchical: a slope that few machines determine is drawn to
the mean of all types, by its own variance and the variance between types (DerSimonian and Laird).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from irgraph.overheads.table import LAUNCH_EXPONENTS

MIN_MACHINES = 3
"""Minimum number of machines that determine a power."""

HUBER_LIMIT = 1.345
"""Residual, in standard deviations, above which machines count less (95 % efficient if normal)."""

MAD_TO_STD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""

MIN_SCALE = 0.05
"""Minimum standard deviation of a machine's times of a type, relative."""

ITERATIONS = 50
"""Number of reweighted fits, after which slopes have converged."""

Vector = npt.NDArray[np.float64]


class KindTotal(Struct, frozen=True):
    """The host time of one type of overhead on a machine, in microseconds.

    Attributes:
        predicted: by the table, unscaled.
        measured: medians times the number of samples.
    """

    predicted: float
    measured: float


class MachineTotals(Struct, frozen=True):
    """A machine's launch time and host times, compared with a table.

    Attributes:
        launch_ratio: launch time over the table's.
        by_kind: host times by type of overhead.
    """

    launch_ratio: float
    by_kind: Mapping[str, KindTotal]

    def error(self, exponents: Mapping[str, float]) -> float:
        """Return predicted over measured host time with the table scaled by these powers."""
        predicted = sum(
            total.predicted * math.pow(self.launch_ratio, exponents[kind])
            for kind, total in self.by_kind.items()
        )
        return predicted / sum(total.measured for total in self.by_kind.values())


class FittedSlope(Struct, frozen=True):
    """A slope and its variance."""

    value: float
    variance: float


def launch_exponents(machines: Sequence[MachineTotals]) -> dict[str, float]:
    """Return the power of the ratio of launch times for each type of overhead."""
    slopes = {}
    for kind in LAUNCH_EXPONENTS:
        points = _points(machines, kind)
        if kind != "T4" and len(points) >= MIN_MACHINES:
            slopes[kind] = robust_slope(points)
    return {"T4": 1.0, **pooled_slopes(slopes)}


def leave_one_out(machines: Sequence[MachineTotals]) -> list[float]:
    """Return predicted over measured host time of each machine by powers of the others."""
    return [
        machine.error(launch_exponents([*machines[:index], *machines[index + 1 :]]))
        for index, machine in enumerate(machines)
    ]


def _points(machines: Iterable[MachineTotals], kind: str) -> list[tuple[float, float]]:
    """Return the logarithms of launch ratio and of host time over the table's by machine."""
    totals = [(m.launch_ratio, m.by_kind[kind]) for m in machines if kind in m.by_kind]
    return [
        (math.log(ratio), math.log(total.measured / total.predicted))
        for ratio, total in totals
        if min(total.measured, total.predicted) > 0.0
    ]


def robust_slope(points: Sequence[tuple[float, float]]) -> FittedSlope:
    """Return the slope of a line through the origin, by iterated Huber weights."""
    x, y = np.array(points).T
    weights: Vector = np.ones(len(x))
    slope, scale = 0.0, 1.0
    for _ in range(ITERATIONS):
        slope = float(np.sum(weights * x * y) / np.sum(weights * x * x))
        residuals = np.abs(y - slope * x)
        scale = max(MAD_TO_STD * float(np.median(residuals)), MIN_SCALE)
        weights = 1.0 / np.maximum(residuals / (HUBER_LIMIT * scale), 1.0)
    return FittedSlope(slope, float(scale**2 / np.sum(weights * x * x)))


def pooled_slopes(slopes: Mapping[str, FittedSlope]) -> dict[str, float]:
    """Return slopes drawn to their mean, the more the less certain each is."""
    values = np.array([slope.value for slope in slopes.values()])
    variances = np.array([slope.variance for slope in slopes.values()])
    between = _variance_between(values, variances)
    mean = float(np.average(values, weights=1.0 / (variances + between)))
    own_shares = between / (between + variances)
    return dict(
        zip(slopes, (own_shares * values + (1.0 - own_shares) * mean).tolist(), strict=True)
    )


def _variance_between(values: Vector, variances: Vector) -> float:
    """Return the variance of the true slopes (DerSimonian and Laird), at least 0."""
    weights = 1.0 / variances
    mean = np.average(values, weights=weights)
    heterogeneity = float(np.sum(weights * (values - mean) ** 2))
    spread = float(weights.sum() - np.sum(weights**2) / weights.sum())
    return max(heterogeneity - (len(values) - 1), 0.0) / spread
