"""``irgraph evaluate llm``: published and predicted steps of language models."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from rich.console import RenderableType
from rich.table import Table

from costmodels.evaluate.comparison import Point, Series
from costmodels.evaluate.errors import Coverage, IntervalHit, coverage, coverage_table
from costmodels.evaluate.llm.case import LlmCase
from costmodels.evaluate.llm.gains import gain_series, ordered_pairs
from costmodels.evaluate.llm.outcome import CaseOutcome
from costmodels.evaluate.llm.rows import Selection, read_cases
from costmodels.evaluate.llm.steps import predict_case
from costmodels.evaluate.measurements import measurements
from costmodels.evaluate.whole.programs import result_or_reason

BASELINE = "median TFLOP/s"
"""Other predictor: the median rate of the cases on the card in the precision."""

WORST = 10
"""Number of cases listed with their parts."""

GROUPINGS: Mapping[str, Callable[[LlmCase], str]] = {
    "source": lambda case: case.source,
    "card": lambda case: case.card,
    "parallelism": lambda case: case.layout.kind,
}

NOTES = (
    "Steps are rebuilt from the sizes and layouts that the rows state; nothing is fitted to them. "
    "A layer's time is the difference of two captures; pipelines are 1F1B by their formula.",
    "Left out of the model: dropout, gradient clipping, loading of data, and compute slowed by "
    "collectives at the same time. Clocks are those of the device sheets.",
    "vTrain does not publish the card's memory or the precision: A100 80 GB and 16 bits are "
    "assumed, and attention that stores its scores.",
)


class LlmEvaluation(Struct, frozen=True):
    """Errors of step times and of peak memory by group, and the rows left out.

    Attributes:
        outcomes: the predicted cases.
        rejections: number of rows by the reason why they are left out.
        gains: gains of one change, by the kind of the change.
    """

    outcomes: Sequence[CaseOutcome]
    rejections: Mapping[str, int]
    gains: Sequence[Series] = ()

    def step_series(self, grouping: str) -> list[Series]:
        """Return the step times by a grouping, with the baseline's errors."""
        key, baseline = GROUPINGS[grouping], self._baseline_errors()
        groups: defaultdict[str, list[Point]] = defaultdict(list)
        for outcome, other in zip(self.outcomes, baseline, strict=True):
            case = outcome.case
            point = Point(case.name, case.measured, outcome.prediction.time, {BASELINE: other})
            groups[key(case)].append(point)
        return [Series(name, points) for name, points in sorted(groups.items())]

    def memory_series(self) -> list[Series]:
        """Return the peak memory by source, for the cases that publish it."""
        groups: defaultdict[str, list[Point]] = defaultdict(list)
        for outcome in self.outcomes:
            case = outcome.case
            if case.memory:
                point = Point(case.name, case.memory, outcome.prediction.memory)
                groups[case.source].append(point)
        return [Series(name, points, unit="GiB") for name, points in sorted(groups.items())]

    def coverages(self) -> tuple[Coverage, ...]:
        """Return the coverage of the 90 % intervals by source."""
        hits: defaultdict[str, list[IntervalHit]] = defaultdict(list)
        for outcome in self.outcomes:
            measured, (low, high) = outcome.case.measured, outcome.prediction.interval
            hit = IntervalHit(low <= measured <= high, (high - low) / 2 / measured)
            hits[outcome.case.source].append(hit)
        return coverage(hits)

    def _baseline_errors(self) -> list[float]:
        """Return the signed error of the median rate of the card and the precision."""
        rates: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for outcome in self.outcomes:
            rates[outcome.case.card, outcome.case.precision].append(outcome.case.rate)
        cases = [outcome.case for outcome in self.outcomes]
        return [c.rate / statistics.median(rates[c.card, c.precision]) - 1 for c in cases]

    def render(self) -> list[RenderableType]:
        """Return the tables and lines to print."""
        tables = [
            summary_table(f"step time by {name}", self.step_series(name)) for name in GROUPINGS
        ]
        tables.append(summary_table("peak memory by source", self.memory_series()))
        tables.append(summary_table("gains of tokens per second", self.gains))
        rejected = [
            f"left out: {count} rows, {reason}" for reason, count in self.rejections.items()
        ]
        orders = [
            f"{source}: {hits} of {count} pairs of layouts in the measured order"
            for source, (count, hits) in ordered_pairs(self.outcomes).items()
        ]
        tables += [coverage_table(self.coverages()), self._worst_table()]
        return [*tables, *orders, *NOTES, *rejected]

    def _worst_table(self) -> Table:
        table = Table("", "measured", "predicted", "error", "parts", title="largest errors")
        table.title_justify = "left"
        for outcome in sorted(self.outcomes, key=lambda o: -abs(o.error))[:WORST]:
            prediction = outcome.prediction
            parts = ", ".join(f"{name} {time:.0f}" for name, time in prediction.parts.items())
            times = (f"{time:.0f} ms" for time in (outcome.case.measured, prediction.time))
            name = f"{outcome.case.source}: {outcome.case.name}"
            table.add_row(name, *times, f"{outcome.error:+.1%}", parts)
        return table

    def as_json(self) -> dict[str, Any]:
        """Return all figures as plain values: milliseconds, GiB, errors in percent."""
        return {
            "evaluation": "llm",
            "steps": [_outcome_json(outcome) for outcome in self.outcomes],
            "summary_pct": {
                grouping: {
                    series.quantity: {
                        name: errors.as_percent() for name, errors in series.summaries().items()
                    }
                    for series in self.step_series(grouping)
                }
                for grouping in GROUPINGS
            },
            "gains_pct": {
                series.quantity: series.summaries()["irgraph"].as_percent() for series in self.gains
            },
            "orders": ordered_pairs(self.outcomes),
            "memory_pct": {
                series.quantity: series.summaries()["irgraph"].as_percent()
                for series in self.memory_series()
            },
            "intervals": [group.as_json() for group in self.coverages()],
            "left_out": dict(self.rejections),
            "notes": list(NOTES),
        }


def evaluate_llm(keep: Path | None = None, folder: Path | None = None) -> LlmEvaluation:
    """Return the errors of all rows that can be rebuilt, and the number of those left out.

    Args:
        keep: folder that caches captured programs.
        folder: folder of the tables (default: ``steps`` under ``IRGRAPH_DATA``).

    Raises ``IrgraphError`` if ``IRGRAPH_DATA`` is unset.
    """
    tables = folder or measurements() / "steps"
    evaluation = evaluate_selections(read_cases(tables), keep)
    outcomes = {outcome.case: outcome for outcome in evaluation.outcomes}

    def outcome_of(case: LlmCase) -> CaseOutcome | None:
        if case not in outcomes:
            (outcome,) = evaluate_selections([case], keep).outcomes or (None,)
            return outcome
        return outcomes[case]

    return replace(evaluation, gains=gain_series(tables, outcome_of))


def evaluate_selections(selections: Iterable[Selection], keep: Path | None = None) -> LlmEvaluation:
    """Return the evaluation of cases; reasons of rows left out are counted."""
    outcomes, rejections = [], Counter[str]()
    for selection in selections:
        if isinstance(selection, str):
            rejections[selection] += 1
            continue
        prediction = result_or_reason(partial(predict_case, selection, keep))
        if isinstance(prediction, str):
            rejections[prediction] += 1
        else:
            outcomes.append(CaseOutcome(selection, prediction))
    return LlmEvaluation(outcomes, dict(rejections.most_common()))


def summary_table(title: str, groups: Sequence[Series]) -> Table:
    """Return a row for each series: number, median, mean absolute error, bias and worst."""
    heads = ("cases", "median", "mean |error|", "bias", "worst", f"{BASELINE}: mean |error|")
    table = Table("", *heads, title=title)
    table.title_justify = "left"
    points = [point for series in groups for point in series.points]
    everything = [Series("all", points)] if len(groups) > 1 else []
    for series in [*groups, *everything]:
        summaries = series.summaries()
        errors, other = summaries["irgraph"], summaries.get(BASELINE)
        median = statistics.median(point.error for point in series.points)
        signed = f"{errors.bias:+.1%}", f"{errors.worst:+.1%}"
        baseline = f"{other.mape:.1%}" if other else ""
        count = str(len(series.points))
        table.add_row(
            series.quantity, count, f"{median:+.1%}", f"{errors.mape:.1%}", *signed, baseline
        )
    return table


def _outcome_json(outcome: CaseOutcome) -> dict[str, Any]:
    case, prediction = outcome.case, outcome.prediction
    return {
        "source": case.source, "name": case.name, "card": case.card,
        "parallelism": case.layout.kind, "measured_ms": case.measured,
        "predicted_ms": prediction.time, "error_pct": 100 * outcome.error,
        "interval_ms": list(prediction.interval), "parts_ms": prediction.parts,
        "measured_gib": case.memory, "predicted_gib": prediction.memory,
    }  # fmt: skip
