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
"""Number of trees and learning rate; other parameters have scikit-learn's defaults."""


def cells(data: Measurements) -> Iterator[tuple[str, str, Flags]]:
    """Yield each op and device with its held-out rows: all, and the rows from 0.1 ms."""
    parts = (("all", 0.0), (">= 0.1 ms", LONG_US))
    for op, name, (part, min_time) in product(data.ops, data.devices, parts):
        rows = data.dev & data.rows_of(name) & (data.op == data.ops.index(op))
        selected = rows & (data.times >= min_time)
        if selected.any():
            yield f"{op} {name}", part, selected


def boosted_scores(
    weights: Weights, data: Measurements, device: Hardware, without: str = ""
) -> dict[tuple[str, str], Score]:
    """Return held-out scores of boosting by op and device, and by part of the rows.

    With ``without``, the device of that name is excluded from training, and only its rows are
    scored, on the inputs that have the same meaning on every device.
    """
    errors = _boosted_times_by_op(weights, data, device, without) / data.times - 1
    return {
        (label, part): score(errors[rows], np.zeros(rows.sum(), bool))
        for label, part, rows in cells(data)
        if label.endswith(without)
    }


def boosted_times(weights: Weights, data: Measurements, rows: Flags) -> Floats:
    """Return times of ``rows`` by boosting ``log(time / base)``, trained on those not held out.

    The times of all other rows are zero.
    """
    device = devices_of(data)
    inputs = weights.family.inputs(data.sizes, device).select(rows)
    columns, training = inputs.matrix().T, ~data.dev[rows]
    target = np.log(data.times[rows] / inputs.base)
    model = _regressor()
    model.fit(columns[training], target[training])
    times = np.zeros_like(data.times)
    times[rows] = np.exp(model.predict(columns)) * inputs.base
    return times


def _boosted_times_by_op(
    weights: Weights, data: Measurements, device: Hardware, without: str
) -> Floats:
    """Return times predicted by boosting ``log(time / (launch + base))``, one model per op."""
    inputs = weights.family.inputs(data.sizes, device)
    columns = inputs.matrix()[: len(inputs.columns) if without else None].T
    before, _ = launch_columns(data, weights.launches)
    scale = before + inputs.base
    target = np.log(data.times / scale)
    training = ~data.dev
    if without:
        training &= ~data.rows_of(without)
        training &= ~np.isin(np.asarray(data.devices)[data.device], THROTTLED)
    times = np.zeros_like(data.times)
    for number in range(len(data.ops)):
        rows = data.op == number
        model = _regressor()
        model.fit(columns[rows & training], target[rows & training])
        times[rows] = np.exp(model.predict(columns[rows])) * scale[rows]
    return times


def _regressor() -> Any:  # noqa: ANN401  (scikit-learn's; it loads here)
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError:
        hint = "pip install 'irgraph[train]'"
        raise fail("the baseline needs scikit-learn", hint=hint, exit_code=2) from None
    return HistGradientBoostingRegressor(
        loss="absolute_error", max_iter=ROUNDS, learning_rate=RATE, random_state=0
    )
