"""``irgraph evaluate intervals``: coverage of measured kernel times by 90 % intervals.

One table of all trained families and of collectives, by op, card, and distance of the rows from the
training rows. All rows are held out of training; if measurements include a launch, only rows whose
kernel outlasts it count. Intervals of whole steps are evaluated by ``irgraph evaluate steps``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from costmodels.evaluate.exchange.errors import CurveErrors as Curve
from costmodels.evaluate.exchange.errors import size_errors
from costmodels.evaluate.measurements import measurements
from costmodels.evaluate.modern import is_priced
from costmodels.families.collective import INTERVAL
from costmodels.learnable.family import WEIGHTS
from costmodels.learnable.measurements import Measurements
from costmodels.learned.weights import Weights, load, load_shipped, shipped_models
from costmodels.training.recipe import devices_of, read
from costmodels.training.score import ScoredRows, score_rows
from costmodels.training.study import OCTAVES, SMALLER, small_shape_rows, thresholds, volume

Flags = NDArray[np.bool_]

MIN_ROWS = 50
"""Minimum rows of a group for a meaningful share."""
MIN_COVERAGE, MAX_COVERAGE = 85.0, 95.0
"""Range of the coverage in percent that counts as right for a 90 % interval."""
LEFT_OUT = "card left out"
GROWTH = (1.0, 8.0, 64.0, np.inf)
"""Boundaries of the groups of larger shapes: volumes over the largest in training."""


class IntervalGroup(Struct, frozen=True):
    """Rows of one op on one card.

    Attributes:
        family, op, card: family, op and card of the rows.
        part: difference from training: other ``shapes`` within the range of sizes (``point``,
            ``group``: ``irgraph evaluate modern``), larger ones, a card left out.
        rows: number of rows.
        held: percent of the rows in their 90 % interval.
        half_width: median half width of the interval, in percent of the time.
        priced: whether ``irgraph predict`` uses it.
    """

    family: str
    op: str
    card: str
    part: str
    rows: int
    held: float
    half_width: float
    priced: bool

    @property
    def verdict(self) -> str:
        """``narrow`` or ``wide`` if the coverage of enough rows is out of range, else ``""``."""
        if self.rows < MIN_ROWS or MIN_COVERAGE <= self.held <= MAX_COVERAGE:
            return ""
        return "narrow" if self.held < MIN_COVERAGE else "wide"


class IntervalEvaluation(Struct, frozen=True):
    """Result of ``irgraph evaluate intervals``."""

    groups: Sequence[IntervalGroup]

    def render(self) -> list[RenderableType]:
        """Return the table, and lines with the numbers of groups in and outside the range."""
        title = "held-out rows in their 90 % intervals, percent"
        heads = ("", "op", "card", "", "in predict", "rows", "held", "half width", "")
        table = Table(*heads, title=title, title_justify="left")
        for group in self.groups:
            names = group.family, group.op, group.card, group.part, "yes" if group.priced else ""
            figures = str(group.rows), f"{group.held:.1f}", f"{group.half_width:.1f}"
            table.add_row(*names, *figures, group.verdict)
        return [table, *self._lines()]

    def _lines(self) -> Iterator[str]:
        for name, priced in (("that predict answers by", True), ("that it does not", False)):
            groups = [g for g in self.groups if g.priced == priced and g.rows >= MIN_ROWS]
            right = sum(not g.verdict for g in groups)
            low, high = (sum(g.verdict == v for g in groups) for v in ("narrow", "wide"))
            yield (
                f"of {len(groups)} groups of at least {MIN_ROWS} rows {name}, {right} hold in "
                f"{MIN_COVERAGE:.0f} to {MAX_COVERAGE:.0f} %, {low} in fewer, {high} in more"
            )

    def as_json(self) -> dict[str, Any]:
        """Return all groups as plain values, shares and widths in percent."""
        groups = [{**asdict(group), "verdict": group.verdict} for group in self.groups]
        return {"evaluation": "intervals", "groups": groups}


def evaluate_intervals() -> IntervalEvaluation:
    """Return the coverage of the measurements in ``IRGRAPH_DATA`` by shipped models' intervals.

    Raises ``IrgraphError`` if the folder is not set.
    """
    folder = measurements()
    groups: list[IntervalGroup] = []
    for name in shipped_models():
        data, _ = read(name, folder)
        groups += [*_held_out_groups(load_shipped(name), data), *_extrapolation_groups(data)]
    return IntervalEvaluation([*groups, *_collectives(folder)])


def _held_out_groups(weights: Weights, data: Measurements) -> Iterator[IntervalGroup]:
    """Yield groups of held-out shapes within the range of training."""
    scored_rows = score_rows(weights, data, devices_of(data), weights.launches)
    all_rows = np.ones(len(data.times), bool)
    parts = {"shapes": all_rows}
    if weights.family.campaign.tables and data.group_held_out is not None:
        parts = {"point": ~data.group_held_out, "group": data.group_held_out}
    for part, rows in parts.items():
        yield from _groups(scored_rows, part, rows, data.devices)


def _extrapolation_groups(data: Measurements) -> Iterator[IntervalGroup]:
    """Yield groups of larger shapes than in training, and of cards excluded from it."""
    for path in sorted((WEIGHTS / "holdout").glob(f"{data.name}-*.safetensors")):
        weights = load(path)
        without = tuple(weights.made["without"])
        scored_rows = score_rows(weights, data, devices_of(data, unseen=without), weights.launches)
        if path.stem != f"{data.name}-{SMALLER}":
            cards = [name for name in without if name in data.devices]
            yield from _groups(scored_rows, LEFT_OUT, data.dev, cards)
            continue
        growth = 2**OCTAVES * volume(data) / np.maximum(thresholds(data), 1.0)
        for low, high in pairwise(GROWTH):
            part = f"{low:g} to {high:g} x larger" if high < np.inf else f"over {low:g} x larger"
            rows = ~small_shape_rows(data) & (growth >= low) & (growth < high)
            yield from _groups(scored_rows, part, rows, data.devices)


def _groups(
    scored_rows: ScoredRows, part: str, rows: Flags, cards: Sequence[str]
) -> Iterator[IntervalGroup]:
    data, family = scored_rows.data, load_shipped(scored_rows.data.name).family
    _, outlasts = scored_rows.kernels()
    for (number, op), card in product(enumerate(data.ops), cards):
        selected = rows & data.dev & outlasts & data.rows_of(card) & (data.op == number)
        if not selected.any():
            continue
        count, share = int(selected.sum()), 100 * float(scored_rows.inside[selected].mean())
        half = 100 * float(np.sinh(np.median(scored_rows.estimates.width[selected])))
        priced = is_priced(family, op, card) if family.campaign.tables else True
        if part == LEFT_OUT:
            priced &= bool(family.campaign.targets)
        yield IntervalGroup(data.name, op, card, part, count, share, half, priced)


def _collectives(folder: Path) -> Iterator[IntervalGroup]:
    """Yield groups of held-out sizes of collectives, by platform and collective."""
    curves_by_key: dict[tuple[str, str], list[Curve]] = {}
    for curve in size_errors(folder, INTERVAL):
        curves_by_key.setdefault((curve.key.platform, curve.key.collective), []).append(curve)
    for (card, op), curves in curves_by_key.items():
        counts = [len(curve.errors) for curve in curves]
        share = float(np.average([curve.inside for curve in curves], weights=counts))
        half = 100 * float(np.median(np.repeat([curve.half for curve in curves], counts)))
        yield IntervalGroup("collective", op, card, "sizes", sum(counts), share, half, True)
