"""Published gains of one change, and the order of layouts of a model on the same cards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path

from costmodels.evaluate.comparison import Point, Series
from costmodels.evaluate.llm.case import LlmCase
from costmodels.evaluate.llm.outcome import CaseOutcome
from costmodels.evaluate.llm.rows import training_case
from costmodels.evaluate.whole.steps import csv_rows

MIN_DIFFERENCE = 1.05
"""Minimum ratio of measured rates at which two layouts have an order."""


def gain_series(folder: Path, outcome_of: Callable[[LlmCase], CaseOutcome | None]) -> list[Series]:
    """Return predicted and measured gains of tokens per second by the kind of the change.

    ``outcome_of`` returns the prediction of a case, ``None`` if it cannot be captured.
    """
    rows = {row["id"]: row for row in csv_rows(folder / "llm_training.csv")}
    points: defaultdict[str, list[Point]] = defaultdict(list)
    for gain in csv_rows(folder / "llm_gains.csv"):
        pair = [rows.get(gain[name]) for name in ("before_id", "after_id")]
        cases = [training_case(row) for row in pair if row is not None]
        outcomes = [outcome_of(case) for case in cases if isinstance(case, LlmCase)]
        captured = [outcome for outcome in outcomes if outcome is not None]
        if len(captured) < len(pair):
            continue
        before, after = captured
        name = f"{before.case.name} to {after.case.name.partition(',')[0]}"
        predicted = after.predicted_rate / before.predicted_rate
        measured = after.measured_rate / before.measured_rate
        points[gain["kind"]].append(Point(name, measured, predicted))
    return [Series(kind, kind_points, unit="x") for kind, kind_points in sorted(points.items())]


def ordered_pairs(outcomes: Iterable[CaseOutcome]) -> dict[str, tuple[int, int]]:
    """Return the numbers of pairs, and of those in the measured order, by source.

    The two have the same decoder but for recomputation, the same cards, and measured rates that
    differ by ``MIN_DIFFERENCE`` at least.
    """
    groups: defaultdict[tuple[object, ...], list[CaseOutcome]] = defaultdict(list)
    for outcome in outcomes:
        case = outcome.case
        shape = (case.shape.layers, case.shape.hidden, case.shape.length)
        groups[case.source, case.card, case.layout.ranks, shape].append(outcome)
    counts: defaultdict[str, list[bool]] = defaultdict(list)
    for group in groups.values():
        for first, second in combinations(group, 2):
            measured = first.measured_rate / second.measured_rate
            if max(measured, 1 / measured) < MIN_DIFFERENCE:
                continue
            predicted = first.predicted_rate / second.predicted_rate
            counts[first.case.source].append((measured > 1) == (predicted > 1))
    return {source: (len(hits), sum(hits)) for source, hits in sorted(counts.items())}
