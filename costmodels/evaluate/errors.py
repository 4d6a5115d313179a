"""Signed relative errors, their summaries, and the coverage of intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict
from rich.table import Table

GMAE_OFFSET = 4e-4
"""Offset added to each absolute error before its logarithm, as in the paper's program."""


class Errors(Struct, frozen=True):
    """Summary of signed relative errors, as fractions.

    Attributes:
        mape: mean of the absolute errors.
        bias: mean of the signed errors.
        gmae: geometric mean of the absolute errors, the paper's measure.
        worst: the error with the largest absolute value.
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
    """Return the summary of signed relative errors, at least one."""
    sizes = [abs(e) for e in errors]
    logs = [math.log(size + GMAE_OFFSET) for size in sizes]
    return Errors(
        statistics.fmean(sizes),
        statistics.fmean(errors),
        math.exp(statistics.fmean(logs)),
        max(errors, key=abs),
    )


ALL = "all"


class IntervalHit(Struct, frozen=True):
    """Hit or miss of an interval by a measured time; ``half`` its half width over that time."""

    inside: bool
    half: float


class Coverage(Struct, frozen=True):
    """Coverage of a group: its cases, and the cases in their 90 % intervals.

    ``half_width`` is the median half width, as a share of the measured time.
    """

    group: str
    cases: int
    inside: int
    half_width: float

    @property
    def share(self) -> float:
        """Share of the cases in their intervals."""
        return self.inside / self.cases

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return asdict(self) | {"share": self.share}


def coverage(hits_by_group: Mapping[str, Sequence[IntervalHit]]) -> tuple[Coverage, ...]:
    """Return the coverage of each group, and of all cases if there are several groups."""
    groups = {name: hits for name, hits in sorted(hits_by_group.items()) if hits}
    if len(groups) > 1:
        groups[ALL] = [hit for hits in groups.values() for hit in hits]
    return tuple(
        Coverage(
            name,
            len(hits),
            sum(hit.inside for hit in hits),
            statistics.median(hit.half for hit in hits),
        )
        for name, hits in groups.items()
    )


def coverage_table(groups: Sequence[Coverage]) -> Table:
    """Return coverage as a table."""
    title = "measured times in their 90 % intervals"
    table = Table("", "cases", "inside", "share", "median half width", title=title)
    table.title_justify = "left"
    for group in groups:
        counts = str(group.cases), str(group.inside)
        table.add_row(group.group, *counts, f"{group.share:.0%}", f"{group.half_width:.0%}")
    return table
