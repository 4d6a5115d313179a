"""Signed relative errors and their summaries."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import asdict

GMAE_OFFSET = 4e-4
"""Added to each absolute error before its logarithm, as the paper's program does."""


class Errors(Struct, frozen=True):
    """Summary of signed relative errors, as fractions.

    Attributes:
        mape: mean of the absolute errors.
        bias: mean of the signed errors.
        gmae: geometric mean of the absolute errors, the paper's measure.
        worst: the error that is largest in size, with its sign.
    """

    mape: float
    bias: float
    gmae: float
    worst: float

    def as_percent(self) -> dict[str, float]:
        """Return the figures in percent."""
        return {name: 100.0 * value for name, value in asdict(self).items()}


def error(predicted: float, measured: float) -> float:
    """Return the signed relative error of a prediction."""
    return predicted / measured - 1.0


def summarize(errors: Sequence[float]) -> Errors:
    """Return the summary of at least one signed relative error."""
    sizes = [abs(e) for e in errors]
    logs = [math.log(size + GMAE_OFFSET) for size in sizes]
    return Errors(
        statistics.fmean(sizes),
        statistics.fmean(errors),
        math.exp(statistics.fmean(logs)),
        max(errors, key=abs),
    )
