"""``irgraph evaluate swept``: measured and predicted kernels of sweeps, by op and type.

On a GPU rented for some minutes, cases of ``irgraph measure``, drawn at random from the sweeps,
were timed under the profiler, on a warm cache and on a cache filled with other data. Formulas may
use two thirds of the rows; the last third, selected by a hash of each case, evaluates them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from rich.console import RenderableType
from rich.table import Table

from costmodels.benchmarks.captured import captured
from costmodels.devices.library import load_device
from costmodels.devices.sheet import DeviceSheet
from costmodels.measure.rows import read_rows
from irgraph.backend import backend
from irgraph.ir.cost import PriceOptions

SHIPPED = Path(__file__).parents[2] / "measurements"
"""Parent of the folders of measurements, each named like the device's sheet."""

HELD_OUT_ONE_IN = 3
LONG_US = 20.0
"""Minimum microseconds of a long kernel; shorter kernels mostly start and end."""


NOTES = (
    f"Held out: one case in {HELD_OUT_ONE_IN}, by a hash of it.",
    "Mean errors are to the nearest time between repeated and on a cold cache: a price between the "
    "two has none. Beside them: to either alone.",
)


class Residual(Struct, frozen=True):
    """One measured call: measured and predicted microseconds of its kernels.

    ``warm``: repeated; ``cold``: on a cache filled with other data; ``spread``: half width of the
    90 % interval; ``outside``: whether a kernel is outside the range of its model.
    """

    family: str
    op: str
    dtype: str
    key: str
    warm: float
    cold: float
    predicted: float
    spread: float
    outside: bool
    kernels: tuple[str, ...] = ()

    @property
    def nearest(self) -> float:
        """The time between warm and cold that is closest to the prediction."""
        low, high = sorted((self.warm, self.cold))
        return min(max(self.predicted, low), high)


class SweptGroup(Struct, frozen=True):
    """Errors of one op in one type, in percent, with separate errors of ``long`` kernels.

    Errors are relative to the nearest time between warm and cold: in a step, operands are in the
    cache or not, and a price between the two times has no error. ``bias`` is the median of signed
    errors, ``mape`` the mean of absolute errors, ``inside`` the share of rows whose time is in the
    90 % interval. ``warm`` and ``cold`` are mean absolute errors relative to one of the times.
    """

    family: str
    op: str
    dtype: str
    rows: int
    bias: float
    mape: float
    inside: float
    warm: float
    cold: float
    long: int
    long_bias: float | None
    long_mape: float | None
    long_inside: float | None


def is_held_out(key: str) -> bool:
    """Return whether the rows of a case are held out, for the evaluation of formulas."""
    return hashlib.sha256(key.encode()).digest()[0] % HELD_OUT_ONE_IN == 0


def residuals(
    path: Path, sheet: DeviceSheet, *, held_out: bool | None = True, ops: Collection[str] = ()
) -> Iterator[Residual]:
    """Yield the measured calls of a file with their prices: held-out ones, the others, or all.

    ``held_out`` is ``None`` for all; ``ops``: families or ops to include (default: all).
    """
    for row in read_rows(path)[1]:
        is_selected = not ops or row["family"] in ops or row["op"] in ops
        if is_selected and row.get("kernel_us") and held_out in (None, is_held_out(row["key"])):
            yield _residual(row, sheet)


def _residual(row: Mapping[str, Any], sheet: DeviceSheet) -> Residual:
    graph = captured(row)
    priced = backend().price(
        graph, sheet.name, PriceOptions(indices=(row["indices"] or "uniform",))
    )
    kernels = [kernel for op in graph.walk() for kernel in priced.kernels.get(op, ())]
    return Residual(
        family=row["family"],
        op=row["op"],
        dtype=row["dtype"],
        key=row["key"],
        warm=row["kernel_us"],
        cold=row.get("cold_us") or row["kernel_us"],
        predicted=sum(kernel.time for kernel in kernels),
        spread=sum(kernel.spread**2 for kernel in kernels) ** 0.5,
        outside=any(kernel.outside for kernel in kernels),
        kernels=tuple(row["kernels"]),
    )


def _group(rows: Sequence[Residual]) -> SweptGroup:
    def figures(selected: Sequence[Residual]) -> tuple[float, float, float]:
        errors = np.array([100 * (row.predicted / row.nearest - 1) for row in selected])
        inside = [abs(row.predicted - row.nearest) <= row.spread for row in selected]
        return float(np.median(errors)), float(np.abs(errors).mean()), 100 * float(np.mean(inside))

    def mean_error_to(time: str) -> float:
        return 100 * float(np.mean([abs(row.predicted / getattr(row, time) - 1) for row in rows]))

    first, long = rows[0], [row for row in rows if row.nearest >= LONG_US]
    of_long = figures(long) if long else (None, None, None)
    return SweptGroup(
        first.family,
        first.op,
        first.dtype,
        len(rows),
        *figures(rows),
        mean_error_to("warm"),
        mean_error_to("cold"),
        len(long),
        *of_long,
    )


class SweptFamily(Struct, frozen=True):
    """Errors of one family's measured calls, in percent, relative to the nearest time.

    ``mape`` and ``median`` are the mean and the median of absolute errors, ``inside`` the share of
    rows whose time is in the 90 % interval, ``half_width`` the median of half its width.
    """

    family: str
    rows: int
    mape: float
    median: float
    inside: float
    half_width: float


def _family(rows: Sequence[Residual]) -> SweptFamily:
    errors = np.array([abs(row.predicted / row.nearest - 1) for row in rows])
    inside = [abs(row.predicted - row.nearest) <= row.spread for row in rows]
    half_widths = [row.spread / row.predicted for row in rows]
    shares = (errors.mean(), np.median(errors), np.mean(inside), np.median(half_widths))
    return SweptFamily(rows[0].family, len(rows), *(100 * float(share) for share in shares))


class SweptEvaluation(Struct, frozen=True):
    """Groups and families of a device's measured calls."""

    device: str
    groups: Sequence[SweptGroup]
    families: Sequence[SweptFamily]

    def render(self) -> list[RenderableType]:
        """Return the table and lines to print."""
        table = Table(
            "op",
            "type",
            "rows",
            "bias %",
            "mean error %",
            "inside %",
            "to warm %",
            "to cold %",
            f"{LONG_US:g} us or more",
            "bias %",
            "mean error %",
            "inside %",
            title=self.device,
        )
        for group in self.groups:
            long = (group.long_bias, group.long_mape, group.long_inside)
            table.add_row(
                group.op,
                group.dtype,
                str(group.rows),
                f"{group.bias:+.0f}",
                f"{group.mape:.0f}",
                f"{group.inside:.0f}",
                f"{group.warm:.0f}",
                f"{group.cold:.0f}",
                str(group.long),
                *("" if x is None else f"{x:.0f}" for x in long),
            )
        return [table, self._family_table(), *NOTES]

    def _family_table(self) -> Table:
        names = ("family", "rows", "mean error %", "median %", "inside %", "half width %")
        table = Table(*names, title=f"{self.device}, by family")
        for family in self.families:
            figures = (family.mape, family.median, family.inside, family.half_width)
            table.add_row(family.family, str(family.rows), *(f"{x:.2f}" for x in figures))
        count = sum(family.rows for family in self.families)
        total = sum(family.rows * family.mape for family in self.families)
        table.add_row("all", str(count), f"{total / max(count, 1):.2f}")
        return table

    def as_json(self) -> dict[str, Any]:
        """Return all figures as plain values, errors in percent."""
        return {
            "evaluation": "swept",
            "device": self.device,
            "groups": [asdict(group) for group in self.groups],
            "families": [asdict(family) for family in self.families],
        }


def evaluate_swept(
    device: str = "h100-80gb-hbm3", *, held_out: bool | None = True, ops: Collection[str] = ()
) -> SweptEvaluation:
    """Return the errors of a device's measured kernels, by op and type."""
    path = SHIPPED / device / "kernels.jsonl.gz"
    rows = residuals(path, load_device(device), held_out=held_out, ops=ops)
    priced = [row for row in rows if row.predicted]
    by_op = _grouped(priced, lambda row: (row.family, row.op, row.dtype))
    by_family = _grouped(priced, lambda row: (row.family,))
    return SweptEvaluation(device, list(map(_group, by_op)), list(map(_family, by_family)))


def _grouped(
    rows: Sequence[Residual], key: Callable[[Residual], tuple[str, ...]]
) -> list[list[Residual]]:
    """Return rows in groups of equal keys, in the order of the keys."""
    groups: dict[tuple[str, ...], list[Residual]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [groups[name] for name in sorted(groups)]
