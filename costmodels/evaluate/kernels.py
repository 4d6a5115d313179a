"""Learned kernel models on held-out measurements: the paper's Table IV for the shipped weights.

Held-out rows are not in training. Errors are relative to the measured times, which include the
host's launch; the traced kernels of a V100 then compare kernel times without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from costmodels.evaluate.boosting import boosted_scores, cells
from costmodels.evaluate.measurements import measurements
from costmodels.evaluate.traced_products import TracedProduct, traced_products, traced_table
from costmodels.learnable.family import WEIGHTS
from costmodels.learned.paper_net import shipped_paper
from costmodels.learned.weights import Weights, load, load_shipped, shipped_models
from costmodels.training.recipe import devices_of, read
from costmodels.training.score import Score, ScoredRows, score, score_rows
from costmodels.training.study import OCTAVES, SMALLER, small_shape_rows, thresholds, volume

Flags = NDArray[np.bool_]
WORST = 10
GROWTH = ((1.0, 8.0), (8.0, 64.0), (64.0, np.inf))
"""Ranges of volumes over the largest in training: the groups in the table of larger shapes."""
EDGES = (0.0, 0.1, 1.0, 10.0, np.inf)
"""Boundaries in milliseconds of the groups in the table by measured time."""


class ScoreTable(Struct, frozen=True):
    """Scores under one title.

    Attributes:
        title: title of the table.
        rows: op and device, range of times or shapes, and score.
        boosting: score of gradient boosting for some rows, by the first two columns.
    """

    title: str
    rows: Sequence[tuple[str, str, Score]]
    boosting: Mapping[tuple[str, str], Score] = field(default_factory=dict)

    def render(self) -> Table:
        """Return a table of percentages."""
        heads = ["GMAE", "mean", "std", "bias", "p90", "in interval"]
        heads += ["boosting GMAE", "mean"] if self.boosting else []
        table = Table("", "", "rows", *heads, title=self.title, title_justify="left")
        for label, part, errors in self.rows:
            figures = errors.as_percent()
            count = figures.pop("count")
            cells = ["-" if x is None else f"{x:.2f} %" for x in figures.values()]
            other = self.boosting.get((label, part))
            cells += [f"{100 * x:.2f} %" for x in (other.gmae, other.mape)] if other else []
            table.add_row(label, part, f"{count:.0f}", *cells)
        return table

    def as_json(self) -> list[dict[str, Any]]:
        """Return the rows as plain values, errors in percent."""
        result: list[dict[str, Any]] = []
        for label, part, errors in self.rows:
            row: dict[str, Any] = {"what": label, "part": part, **errors.as_percent()}
            other = self.boosting.get((label, part))
            result.append({**row, "boosting": other.as_percent()} if other else row)
        return result


class Residuals(Struct, frozen=True):
    """Signed errors of one family's held-out rows on one device, in percent, by milliseconds."""

    family: str
    device: str
    times: NDArray[np.float32]
    errors: NDArray[np.float32]


class KernelEvaluation(Struct, frozen=True):
    """Result of ``irgraph evaluate kernels``."""

    tables: Sequence[ScoreTable]
    traced: Sequence[TracedProduct]
    worst: Sequence[Mapping[str, Any]]
    residuals: Sequence[Residuals] = ()

    def render(self) -> list[RenderableType]:
        """Return the tables to print."""
        return [
            *(t.render() for t in self.tables),
            traced_table(self.traced),
            _worst_table(self.worst),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return all figures as plain values: errors in percent, times in microseconds."""
        fields = ("kernel", "sizes", "measured", "learned", "spread", "heuristic")
        return {
            "evaluation": "kernels",
            "scores_pct": {table.title: table.as_json() for table in self.tables},
            "traced_us": [{name: getattr(t, name) for name in fields} for t in self.traced],
            "worst": list(self.worst),
        }


def evaluate_kernels(*, baseline: bool = False) -> KernelEvaluation:
    """Score the shipped weights on the held-out rows of ``IRGRAPH_DATA``.

    With ``baseline``, gradient boosting is also trained on the same rows and inputs and scored.
    """
    folder = measurements()
    by_device: list[tuple[str, str, Score]] = []
    by_size: list[tuple[str, str, Score]] = []
    worst: list[Mapping[str, Any]] = []
    residuals: list[Residuals] = []
    boosting: dict[tuple[str, str], Score] = {}
    for family in shipped_models():
        weights = load_shipped(family)
        if weights.family.campaign.tables:
            continue
        data, device = read(family, folder)
        scored_rows = score_rows(weights, data, device, weights.launches)
        by_device += list(_by_device(scored_rows))
        by_size += list(_by_size(scored_rows))
        worst += _worst_rows(scored_rows)
        residuals += _residuals(scored_rows)
        if baseline:
            boosting |= boosted_scores(weights, data, device)
    worst.sort(key=lambda row: -abs(row["error_pct"]))
    unseen, unseen_boosting = _unseen_device_scores(folder, baseline)
    tables = [
        ScoreTable("held-out shapes, launch included", by_device, boosting),
        ScoreTable("held-out shapes by measured time (T4 left out)", by_size),
        ScoreTable(
            "a device left out of training, by its datasheet alone", unseen, unseen_boosting
        ),
        ScoreTable("larger shapes than any in training", _larger_shape_scores(folder)),
        ScoreTable("the paper's way, one network for one op on one card", _paper_scores(folder)),
    ]
    return KernelEvaluation(tables, traced_products(folder), worst[:WORST], residuals)


def _by_device(scored_rows: ScoredRows) -> Iterator[tuple[str, str, Score]]:
    for label, part, keep in cells(scored_rows.data):
        yield label, part, scored_rows.score(keep)


def _residuals(scored_rows: ScoredRows) -> list[Residuals]:
    data, result = scored_rows.data, []
    for name in data.devices:
        keep = data.dev & data.rows_of(name)
        errors = 100 * scored_rows.errors[keep]
        result.append(Residuals(data.name, name, data.times[keep] / 1e3, errors))
    return result


def _paper_scores(folder: Path) -> list[tuple[str, str, Score]]:
    """Score the networks of the search over Table II, and the shipped weights on the same rows."""
    rows = []
    for net in shipped_paper():
        weights = load_shipped(net.family.name)
        data, device = read(net.family.name, folder)
        scored_rows = score_rows(weights, data, device, weights.launches)
        keep = data.dev & data.rows_of(net.device) & (data.op == data.ops.index(net.op))
        errors = net.predict(data.sizes) / data.times - 1
        label = f"{net.op} {net.device}"
        rows.append((label, "paper's way", score(errors[keep], None)))
        rows.append((label, "irgraph", scored_rows.score(keep)))
    return rows


def _by_size(scored_rows: ScoredRows) -> Iterator[tuple[str, str, Score]]:
    data = scored_rows.data
    fair = data.dev & ~data.rows_of("T4")
    for low, high in pairwise(EDGES):
        rows = fair & (data.times >= low * 1e3) & (data.times < high * 1e3)
        if rows.any():
            yield data.name, f"{low:g} to {high:g} ms", scored_rows.score(rows)


def _worst_rows(scored_rows: ScoredRows) -> list[Mapping[str, Any]]:
    """Return the held-out rows with the largest errors, without the throttled T4."""
    data = scored_rows.data
    errors = np.where(data.dev & ~data.rows_of("T4"), np.abs(scored_rows.errors), 0)
    result: list[Mapping[str, Any]] = []
    shapes = data.shapes()
    for row in np.argsort(-errors)[:WORST]:
        sizes = "x".join(f"{size:.0f}" for size in shapes[row])
        result.append(
            {
                "kernel": f"{data.ops[data.op[row]]} {sizes}",
                "device": data.devices[data.device[row]],
                "measured_us": round(float(data.times[row]), 1),
                "predicted_us": round(float(scored_rows.predicted[row]), 1),
                "error_pct": round(100 * float(scored_rows.errors[row]), 1),
            }
        )
    return result


def _holdout_models() -> Iterator[tuple[str, Weights]]:
    for path in sorted((WEIGHTS / "holdout").glob("*.safetensors")):
        weights = load(path)
        if weights.family.campaign.tables:
            continue
        yield path.stem.removeprefix(f"{weights.family.name}-"), weights


def _unseen_device_scores(
    folder: Path, baseline: bool
) -> tuple[list[tuple[str, str, Score]], dict[tuple[str, str], Score]]:
    rows: list[tuple[str, str, Score]] = []
    boosting: dict[tuple[str, str], Score] = {}
    for name, weights in _holdout_models():
        if name == SMALLER:
            continue
        data, _ = read(weights.family.name, folder)
        device = devices_of(data, unseen=(name,))
        scored_rows = score_rows(weights, data, device, weights.launches)
        rows += [row for row in _by_device(scored_rows) if row[0].endswith(name)]
        if baseline:
            boosting |= boosted_scores(weights, data, device, name)
    return rows, boosting


def _larger_shape_scores(folder: Path) -> list[tuple[str, str, Score]]:
    """Score models on shapes larger than any in their training, by the ratio of volumes."""
    rows = []
    for name, weights in _holdout_models():
        if name == SMALLER:
            data, device = read(weights.family.name, folder)
            rows += list(_by_growth(score_rows(weights, data, device, weights.launches)))
    return rows


def _by_growth(scored_rows: ScoredRows) -> Iterator[tuple[str, str, Score]]:
    data = scored_rows.data
    large = data.dev & ~small_shape_rows(data)
    growth = 2**OCTAVES * volume(data) / thresholds(data)
    for op, name, (low, high) in product(data.ops, data.devices, GROWTH):
        rows = large & data.rows_of(name) & (data.op == data.ops.index(op))
        keep = rows & (growth >= low) & (growth < high)
        if keep.any():
            part = f"{low:g} to {high:g} x" if high < np.inf else f"over {low:g} x"
            yield f"{op} {name}", part, scored_rows.score(keep)


def _worst_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(*rows[0], title="worst held-out cases (T4 left out)", title_justify="left")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    return table
