"""Gradient boosting on the rows and inputs of the learned models, as a baseline."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.learnable.hardware import THROTTLED, Floats, Hardware
from costmodels.learnable.measurements import Measurements
from costmodels.learned.weights import Weights
from costmodels.training.recipe import devices_of
from costmodels.training.score import LONG_US, Score, launch_columns, score
from irgraph.diagnostics import fail

Flags = NDArray[np.bool_]
ROUNDS, RATE = 600, 0.06
"""Trees and learning rate; all else as scikit-learn has it."""


def cells(data: Measurements) -> Iterator[tuple[str, str, Flags]]:
    """Yield each op and device with its held-out rows: all, and those measured from 0.1 ms on."""
    parts = (("all", 0.0), (">= 0.1 ms", LONG_US))
    for op, name, (part, least) in product(data.ops, data.devices, parts):
        rows = data.dev & data.rows_of(name) & (data.op == data.ops.index(op))
        keep = rows & (data.times >= least)
        if keep.any():
            yield f"{op} {name}", part, keep


def boosted_scores(
    weights: Weights, data: Measurements, device: Hardware, without: str = ""
) -> dict[tuple[str, str], Score]:
    """Return held-out scores of boosting by op and device, and by part of the rows.

    With ``without`` the device of that name is left out of training and alone scored, on the inputs
    that mean the same on every device.
    """
    errors = _boosted(weights, data, device, without) / data.times - 1
    return {
        (what, part): score(errors[keep], np.zeros(keep.sum(), bool))
        for what, part, keep in cells(data)
        if what.endswith(without)
    }


def boosted(weights: Weights, data: Measurements, mine: Flags) -> Floats:
    """Return times of boosting ``log(time / base)`` on some rows, trained on those not held out.

    Rows that are not among them are left at zero.
    """
    device = devices_of(data)
    inputs = weights.family.inputs(data.sizes, device).select(mine)
    columns, known = inputs.matrix().T, ~data.dev[mine]
    goal = np.log(data.times[mine] / inputs.base)
    model = _regressor()
    model.fit(columns[known], goal[known])
    found = np.zeros_like(data.times)
    found[mine] = np.exp(model.predict(columns)) * inputs.base
    return found


def _boosted(weights: Weights, data: Measurements, device: Hardware, without: str) -> Floats:
    """Return times predicted by boosting ``log(time / (launch + base))``, one model an op."""
    inputs = weights.family.inputs(data.sizes, device)
    columns = inputs.matrix()[: len(inputs.columns) if without else None].T
    before, _ = launch_columns(data, weights.launches)
    scale = before + inputs.base
    goal = np.log(data.times / scale)
    known = ~data.dev
    if without:
        known &= ~data.rows_of(without)
        known &= ~np.isin(np.asarray(data.devices)[data.device], THROTTLED)
    found = np.zeros_like(data.times)
    for number in range(len(data.ops)):
        rows = data.op == number
        model = _regressor()
        model.fit(columns[rows & known], goal[rows & known])
        found[rows] = np.exp(model.predict(columns[rows])) * scale[rows]
    return found


def _regressor() -> Any:  # noqa: ANN401  (scikit-learn's; it loads here)
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError:
        hint = "pip install 'irgraph[train]'"
        raise fail("the baseline needs scikit-learn", hint=hint, exit_code=2) from None
    return HistGradientBoostingRegressor(
        loss="absolute_error", max_iter=ROUNDS, learning_rate=RATE, random_state=0
    )
