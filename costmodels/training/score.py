"""Errors of predicted times; predictions and measurements include the host's launch."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from numpy.typing import NDArray

from costmodels.learnable.hardware import Floats, Hardware
from costmodels.learnable.launch import NEAR_FLOOR, Launches
from costmodels.learnable.measurements import Measurements
from costmodels.learned.infer import Estimates, estimate
from costmodels.learned.weights import Weights

OFFSET = 4e-4
"""Offset added to absolute errors before their logarithm, as in the paper's program."""
LONG_US = 100.0
"""Measured microseconds above which the kernel dominates its launch."""


class Score(Struct, frozen=True):
    """Errors of many predictions, as fractions of the measured times.

    Attributes:
        count: number of predictions.
        gmae: geometric mean of absolute errors (the paper's Table IV).
        mape, std: mean and standard deviation of absolute errors (the same table).
        bias: mean of signed errors.
        p90: 90 % of absolute errors are smaller.
        coverage: share of measured times inside their 90 % interval; ``None`` without intervals.
    """

    count: int
    gmae: float
    mape: float
    std: float
    bias: float
    p90: float
    coverage: float | None

    def as_percent(self) -> dict[str, Any]:
        """Return the figures in percent, and the count."""
        values = asdict(self)
        count = values.pop("count")
        percent = {n: None if x is None else round(100 * x, 3) for n, x in values.items()}
        return {"count": count, **percent}


def score(errors: Floats, inside: NDArray[np.bool_] | None) -> Score:
    """Return the summary of signed errors, at least one, and of hits of intervals, if any."""
    sizes = np.abs(errors).astype(np.float64)
    return Score(
        len(sizes),
        float(np.exp(np.log(sizes + OFFSET).mean())),
        float(sizes.mean()),
        float(sizes.std()),
        float(errors.mean(dtype=np.float64)),
        float(np.quantile(sizes, 0.9)),
        None if inside is None else float(inside.mean()),
    )


class ScoredRows(Struct, frozen=True):
    """Predictions and measurements, one value per row.

    Attributes:
        data: the measurements.
        estimates: estimates of the kernels.
        predicted: predicted microseconds of kernel and launch.
        inside: whether the measured time is in the 90 % interval.
        launches: the host's share of the measured times.
    """

    data: Measurements
    estimates: Estimates
    predicted: Floats
    inside: NDArray[np.bool_]
    launches: Launches

    @property
    def errors(self) -> Floats:
        """Signed errors of the measured time."""
        return np.asarray(self.predicted / self.data.times - 1, np.float32)

    def kernels(self) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the kernels' own times, and the mask of kernels that outlast their launch."""
        before, hidden = launch_columns(self.data, self.launches)
        kernel = self.data.times - before
        return np.maximum(kernel, 1e-3), kernel > NEAR_FLOOR * hidden

    def score(self, keep: NDArray[np.bool_]) -> Score:
        """Return the summary of some rows."""
        return score(self.errors[keep], self.inside[keep])


def score_rows(
    weights: Weights, data: Measurements, device: Hardware, launches: Launches
) -> ScoredRows:
    """Return predictions of measured times; ``device`` has one row per kernel.

    The launch is added as ``costmodels.learnable.launch`` separates it. A kernel that ended before
    its launch was not timed: its interval is 10 % around the floor.
    """
    estimates = estimate(weights, data.sizes, device)
    before, hidden = launch_columns(data, launches)
    floor = (before + hidden) * np.exp(estimates.floor)
    predicted = np.maximum(before + estimates.time, floor)
    low = np.maximum(before + estimates.time * np.exp(-estimates.width), floor * 0.9)
    high = np.maximum(before + estimates.time * np.exp(estimates.width), floor * 1.1)
    inside = (low <= data.times) & (data.times <= high)
    return ScoredRows(data, estimates, predicted, inside, launches)


def launch_columns(data: Measurements, launches: Launches) -> tuple[Floats, Floats]:
    """Return ``before`` and ``hidden`` of each row's op and device, at its position in the run."""
    before = np.full(len(data.times), np.nan, np.float32)
    hidden = before.copy()
    for i, op in enumerate(data.ops):
        for j, name in enumerate(data.devices):
            rows = (data.op == i) & (data.device == j)
            launch = launches.get((op, name))
            if launch is not None and rows.any():
                before[rows] = launch.before + launch.drift_at(data.position[rows])
                hidden[rows] = launch.hidden
    return before, hidden
