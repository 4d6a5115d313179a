"""Trained models of current kernels on rows that are not in training, by card.

``point`` rows have neighbours in training (other rows of the same weights, other lengths of the
same heads); ``group`` rows have no similar rows in training, like the layers of a new model. For a
card that is ``left out``, and for its near copies, only the datasheet is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from costmodels.devices.library import load_device
from costmodels.evaluate.boosting import boosted_times
from costmodels.evaluate.measurements import measurements
from costmodels.families import rules
from costmodels.formulas.machine import Machine
from costmodels.formulas.software import software_profile
from costmodels.learnable.family import WEIGHTS, LearnedFamily
from costmodels.learnable.measurements import Measurements
from costmodels.learned.predictors import SOFTWARE, predictors
from costmodels.learned.weights import Weights, load, load_shipped, shipped_models
from costmodels.training.recipe import devices_of, read
from costmodels.training.score import OFFSET, ScoredRows, score_rows
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

QUERY_SIZES: Mapping[str, Mapping[str, float | str]] = {
    "sweep": {"dtype": "bf16"},
    "sweep_f8": {"dtype": "f8e4m3"},
    "layer": {"dtype": "f16"},
    "xla": {"dtype": "bf16"},
    "xla_tf32": {"dtype": "tf32"},
    "volta_nn": {"dtype": "f16", "layout": "nn"},
    "volta_nt": {"dtype": "f16", "layout": "nt"},
    "volta_tn": {"dtype": "f16", "layout": "tn"},
}
"""Sizes in a query of pricing, by the campaign of products that is closest to it."""

ROWS, TABLE, INDICES, WEIGHT = (
    Tensor(name, dtype, shape, name)
    for name, dtype, shape in (
        ("rows", "f16", (1024, 4096)),
        ("table", "f16", (32_000, 4096)),
        ("indices", "i64", (1024,)),
        ("weight", "f16", (4096,)),
    )
)
HEADS_OF_PASS = tuple(Tensor(name, "bf16", (4, 16, 1024, 64), name) for name in "qkv")
FLASH = "aten._scaled_dot_product_flash_attention"
CALLS: Mapping[str, Op] = {
    "causal": Op(FLASH, HEADS_OF_PASS, HEADS_OF_PASS[:1], {"is_causal": True}),
    "full": Op(FLASH, HEADS_OF_PASS, HEADS_OF_PASS[:1], {}),
    "add": Op("aten.add", (ROWS, ROWS), (ROWS,), {}),
    "gelu": Op("aten.gelu", (ROWS,), (ROWS,), {}),
    "norm": Op("aten.native_layer_norm", (ROWS, (4096,), WEIGHT, WEIGHT, 1e-5), (ROWS,), {}),
    "embedding": Op("aten.embedding", (TABLE, INDICES), (ROWS,), {}),
}
"""Calls whose kernels other campaigns measured: their families may prefer another price."""

PARTS, LEFT_OUT = ("point", "group"), "left out"
PLAIN = ("family", "op", "card", "part", "rows", "priced")
HEADS = ("MAPE", "GMAE", "bias", "worst", "in interval", "half width")


class Cell(Struct, frozen=True):
    """Errors of one campaign of measurements on one card, in percent.

    Attributes:
        family: the trained model.
        op: the campaign of measurements.
        card: name of its sheet.
        part: one of ``PARTS``, or ``LEFT_OUT``.
        priced: whether ``irgraph predict`` uses it on this card.
        rows: number of rows.
        figures: mean and geometric mean of absolute errors, mean of signed errors, the worst error,
            the share of rows inside their 90 % interval, and the median of its half width.
        boosting: mean and geometric mean of gradient boosting's errors, if requested.
    """

    family: str
    op: str
    card: str
    part: str
    rows: int
    figures: Mapping[str, float]
    boosting: Sequence[float] = ()
    priced: bool = False


class ModernEvaluation(Struct, frozen=True):
    """Result of ``irgraph evaluate modern``."""

    cells: Sequence[Cell]

    def render(self) -> list[RenderableType]:
        """Return one table per family."""
        names = dict.fromkeys(cell.family for cell in self.cells)
        return [self._table(name) for name in names]

    def _table(self, family: str) -> Table:
        cells = [cell for cell in self.cells if cell.family == family]
        heads = ["boosting MAPE", "GMAE"] if any(cell.boosting for cell in cells) else []
        title = f"{family}: held-out rows, percent"
        first = ("", "card", "", "in predict", "rows")
        table = Table(*first, *HEADS, *heads, title=title, title_justify="left")
        for cell in cells:
            values = [f"{x:.1f}" for x in (*cell.figures.values(), *cell.boosting)]
            names = (cell.op, cell.card, cell.part, "yes" if cell.priced else "")
            table.add_row(*names, str(cell.rows), *values)
        return table

    def as_json(self) -> dict[str, Any]:
        """Return all figures as plain values, in percent."""
        cells = [
            {
                **{name: getattr(cell, name) for name in PLAIN},
                **{name.replace(" ", "_"): value for name, value in cell.figures.items()},
                **dict(zip(("boosting_MAPE", "boosting_GMAE"), cell.boosting, strict=False)),
            }
            for cell in self.cells
        ]
        return {"evaluation": "modern", "held_out_pct": cells}


def evaluate_modern(*, baseline: bool = False) -> ModernEvaluation:
    """Score the models of current kernels on the held-out rows of ``IRGRAPH_DATA``.

    With ``baseline``, gradient boosting is trained on the same rows and inputs, card by card.
    Raises ``IrgraphError`` if the folder is not set.
    """
    folder = measurements()
    cells: list[Cell] = []
    for name in shipped_models():
        weights = load_shipped(name)
        if not weights.family.campaign.tables:
            continue
        data, device = read(name, folder)
        scored_rows = score_rows(weights, data, device, weights.launches)
        cells += [*_cells(weights, scored_rows, baseline), *_unseen_card_cells(data)]
    return ModernEvaluation(cells)


def _unseen_card_cells(data: Measurements) -> Iterator[Cell]:
    """Yield the errors of models trained without a card and its near copies, on that card."""
    for path in sorted((WEIGHTS / "holdout").glob(f"{data.name}-*.safetensors")):
        weights = load(path)
        without = tuple(weights.made["without"])
        scored_rows = score_rows(weights, data, devices_of(data, unseen=without), weights.launches)
        cards = [name for name in without if name in data.devices]
        for card, (number, op) in product(cards, enumerate(data.ops)):
            rows = (data.op == number) & data.dev & data.rows_of(card)
            if rows.any() and not np.isinf(weights.extent[0, number]):
                figures = _figures(scored_rows, rows)
                yield Cell(data.name, op, card, LEFT_OUT, int(rows.sum()), figures)


def _cells(weights: Weights, scored_rows: ScoredRows, baseline: bool) -> Iterator[Cell]:
    data = scored_rows.data
    new_group = (
        np.zeros(len(data.times), bool) if data.group_held_out is None else data.group_held_out
    )
    for (number, op), card in product(enumerate(data.ops), data.devices):
        selected = data.rows_of(card) & (data.op == number)
        if not (selected & data.dev).any():
            continue
        boosting_times = boosted_times(weights, data, selected) if baseline else None
        for part, part_rows in zip(PARTS, (~new_group, new_group), strict=True):
            rows = selected & data.dev & part_rows
            if rows.any():
                boosting = (
                    ()
                    if boosting_times is None
                    else _means(boosting_times[rows] / data.times[rows] - 1)
                )
                figures = _figures(scored_rows, rows)
                count, priced = int(rows.sum()), is_priced(weights.family, op, card)
                yield Cell(data.name, op, card, part, count, figures, boosting, priced)


def is_priced(family: LearnedFamily, op: str, card: str) -> bool:
    """Return whether pricing uses an op of a family on a measured card, with today's software."""
    if op in CALLS:
        sheet = load_device(card)
        machine = Machine(sheet, software_profile(SOFTWARE), learned=predictors(sheet, SOFTWARE))
        kernels = rules()[CALLS[op].name](CALLS[op], machine) or ()
        return any(kernel.by == "learned" and not kernel.outside for kernel in kernels)
    if op not in QUERY_SIZES:
        return False
    sizes: dict[str, float | str] = dict.fromkeys(family.sizes, 256.0)
    sizes |= {"layout": "tn", **QUERY_SIZES[op]}
    sizes |= {"batch": 1.0, "card": card, "target": load_device(card).target}
    query = family.query(sizes)
    return query is not None and query.op == op


def _means(errors: NDArray[np.float32]) -> tuple[float, float]:
    """Return mean and geometric mean of absolute errors in percent."""
    sizes = np.abs(errors).astype(np.float64)
    return 100 * float(sizes.mean()), 100 * float(np.exp(np.log(sizes + OFFSET).mean()))


def _figures(scored_rows: ScoredRows, rows: NDArray[np.bool_]) -> dict[str, float]:
    width = float(np.sinh(np.median(scored_rows.estimates.width[rows])))
    return _summary(scored_rows.errors[rows], scored_rows.inside[rows], width)


def _summary(
    errors: NDArray[np.float32], inside: NDArray[np.bool_], width: float
) -> dict[str, float]:
    worst = float(errors[np.argmax(np.abs(errors))])
    signed = 100 * float(errors.mean(dtype=np.float64)), 100 * worst
    coverage = 100 * float(inside.mean())
    return dict(zip(HEADS, (*_means(errors), *signed, coverage, 100 * width), strict=True))
