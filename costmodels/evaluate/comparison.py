"""Comparison of predictions with measurements for many points, as tables and as plain values."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Protocol, TypeAlias

from msgspec import Struct, field
from rich.console import RenderableType
from rich.table import Table

from costmodels.evaluate.errors import Coverage, Errors, coverage_table, error, summarize

Row: TypeAlias = Mapping[str, str]
"""Published point: values by column."""


class Evaluation(Protocol):
    """Result of an evaluation: tables to print, and the same figures as plain values."""

    def render(self) -> list[RenderableType]:
        """Return the tables and lines to print."""

    def as_json(self) -> dict[str, Any]:
        """Return all figures as plain values."""


class Point(Struct, frozen=True):
    """One measured quantity of one workload. Times in milliseconds.

    Attributes:
        workload: name of the workload, such as ``DLRM_default, B = 512``.
        measured, predicted: the times, or gains.
        others: signed errors of other predictors, as fractions, by predictor.
    """

    workload: str
    measured: float
    predicted: float
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """Signed relative error of the prediction."""
        return error(self.predicted, self.measured)


class Series(Struct, frozen=True):
    """Points of one quantity, such as the step time.

    ``unsigned``: the errors of others were published without sign; ``unit`` is ``ms``, ``x`` for
    gains (the time before over the time after), or ``GB`` for memory.
    """

    quantity: str
    points: Sequence[Point]
    unsigned: bool = False
    unit: str = "ms"

    def summaries(self) -> dict[str, Errors]:
        """Return the summaries of errors by predictor, irgraph first."""
        result = {"irgraph": summarize([p.error for p in self.points])}
        for predictor in self.points[0].others:
            result[predictor] = summarize([p.others[predictor] for p in self.points])
        return result

    def table(self) -> Table:
        """Return the points and their summaries as a table."""
        others = list(self.points[0].others)
        kind = "|error|" if self.unsigned else "error"
        heads = ["irgraph error", *(f"{predictor} {kind}" for predictor in others)]
        table = Table("", "measured", "predicted", *heads, title=self.quantity)
        table.title_justify = "left"
        for point in self.points:
            errors = [point.error, *(point.others[predictor] for predictor in others)]
            times = [f"{time:.2f} {self.unit}" for time in (point.measured, point.predicted)]
            table.add_row(point.workload, *times, *self._format_errors(errors))
        table.add_section()
        columns = list(self.summaries().values())
        biases = self._format_errors([s.bias for s in columns])
        table.add_row("MAPE", "", "", *(f"{s.mape:.1%}" for s in columns))
        table.add_row("bias", "", "", *(biases[:1] if self.unsigned else biases))
        table.add_row("geometric mean", "", "", *(f"{s.gmae:.1%}" for s in columns))
        table.add_row("worst", "", "", *self._format_errors([s.worst for s in columns]))
        return table

    def _format_errors(self, errors: Sequence[float]) -> list[str]:
        """Return irgraph's error with its sign, and other predictors' errors, signed if known."""
        others = "{:.1%}" if self.unsigned else "{:+.1%}"
        return [f"{errors[0]:+.1%}", *(others.format(e) for e in errors[1:])]


STEP, ACTIVE = "step_ms", "active_ms"
"""Columns of published points: milliseconds of a step, and of its work on the device."""


def shipped_rows(name: str) -> list[Row]:
    """Return the published points of a shipped file: times in ms, errors in percent."""
    file = resources.files("costmodels.evaluate") / "data" / name
    lines = file.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def workload(row: Row) -> str:
    """Return the name of a published point in reports."""
    return f"{row.get('name') or row['model']}, B = {row['batch']}"


def series(
    quantity: str,
    rows: Iterable[Row],
    predicted: Iterable[float],
    measured: Callable[[Row], float] = lambda row: float(row[STEP]),
    others: Mapping[str, str] | None = None,
    *,
    unsigned: bool = False,
) -> Series:
    """Return published points with predictions.

    Args:
        quantity: name of the compared quantity.
        rows: the points.
        predicted: predicted microseconds of each.
        measured: function that returns the measured milliseconds of a row.
        others: column of the errors in percent of each other predictor, by name.
        unsigned: whether those errors were published without sign.
    """
    points = []
    for row, time in zip(rows, predicted, strict=True):
        errors = {
            predictor: float(row[column]) / 100.0 for predictor, column in (others or {}).items()
        }
        points.append(Point(workload(row), measured(row), time / 1000.0, errors))
    return Series(quantity, points, unsigned)


class Comparison(Struct, frozen=True):
    """An evaluation: one table per quantity, its settings, and its limitations.

    Attributes:
        name: name in the command line.
        series: the quantities.
        settings: settings of the predictions.
        notes: sentences to print with the figures.
        intervals: coverage of the predicted intervals, by group.
    """

    name: str
    series: Sequence[Series]
    settings: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    intervals: Sequence[Coverage] = ()

    def render(self) -> list[RenderableType]:
        """Return the tables and lines to print."""
        settings = Table(show_header=False, title="made with", title_justify="left")
        for name, value in self.settings.items():
            settings.add_row(name, value)
        coverage_tables = [coverage_table(self.intervals)] if self.intervals else []
        return [*(s.table() for s in self.series), *coverage_tables, settings, *self.notes]

    def as_json(self) -> dict[str, Any]:
        """Return all figures as plain values: times in ms, errors in percent."""
        return {
            "evaluation": self.name,
            "quantities": {s.quantity: _series_json(s) for s in self.series},
            "settings": dict(self.settings),
            "notes": list(self.notes),
            "intervals": [group.as_json() for group in self.intervals],
        }


def _series_json(series: Series) -> dict[str, Any]:
    points = [
        {
            "workload": p.workload,
            f"measured_{series.unit}": p.measured,
            f"predicted_{series.unit}": p.predicted,
            "error_pct": 100.0 * p.error,
            f"others_{'absolute_' * series.unsigned}error_pct": {
                predictor: 100.0 * e for predictor, e in p.others.items()
            },
        }
        for p in series.points
    ]
    summaries = {predictor: s.as_percent() for predictor, s in series.summaries().items()}
    return {"points": points, "summary_pct": summaries}
