"""Extrapolation of a family's model: to devices excluded from training, and to larger shapes.

The errors of these experiments are the widths of the model's intervals in extrapolation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.families import learned_families
from costmodels.learnable.hardware import Hardware
from costmodels.learnable.launch import Flags
from costmodels.learnable.measurements import Measurements
from costmodels.learnable.settings import Architecture, Settings
from costmodels.learned.infer import SLACK
from costmodels.learned.weights import Weights
from costmodels.training.recipe import devices_of, learn, read
from costmodels.training.score import ScoredRows, score_rows
from costmodels.training.train import MIN_CALIBRATION_ROWS

SMALLER = "smaller-shapes"
"""Name of the model that is trained without the largest shapes."""
OCTAVES, LARGEST_QUANTILE = 3, 0.9
"""Octaves of volume between the training shapes and the largest ones, and the quantile of an op's
volume above which shapes are the largest ones."""
MIN_OCTAVE_WIDTH, MIN_MEASURED_OCTAVE_WIDTH = 0.05, 0.01
"""Minimum 90 % interval of a log error that an octave beyond the training range adds: on any card,
and on a card with measurements of the largest shapes."""


def experiment_settings(settings: Settings) -> Settings:
    """Return settings for an experiment: half the steps, two members, no refit.

    A family without refit, which has many rows, gets a quarter of the steps and one member.
    """
    shape = settings.architecture
    if not settings.refit:
        return replace(settings, steps=settings.steps // 4, architecture=replace(shape, members=1))
    members = Architecture(shape.width, shape.depth, min(shape.members, 2))
    return replace(settings, steps=settings.steps // 2, architecture=members, refit=False)


def volume(data: Measurements) -> NDArray[np.float64]:
    """Return the product of all sizes of each row; for matrix products, half their FLOP."""
    return np.asarray(np.prod(data.shapes().astype(np.float64), 1))


def thresholds(data: Measurements) -> NDArray[np.float64]:
    """Return for each row the minimum volume of the largest shapes of its op."""
    sizes = volume(data)
    limits = [
        np.quantile(sizes[~data.dev & (data.op == number)], LARGEST_QUANTILE)
        for number in range(len(data.ops))
    ]
    return np.asarray(limits)[data.op]


def small_shape_rows(data: Measurements) -> Flags:
    """Return the mask of rows at least ``OCTAVES`` below the largest shapes of their op."""
    return np.asarray(volume(data) * 2**OCTAVES <= thresholds(data))


def experiments(
    family: str,
    folder: str | Path,
    settings: Settings,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Weights]:
    """Return models of a family trained without a device or without large shapes, by name.

    The width of the intervals for an excluded device comes from the errors on the other excluded
    devices (``unseen_width``), never from its own.
    """
    data, device = read(family, folder)
    settings = experiment_settings(settings)
    groups = learned_families()[family].campaign.held_out_groups
    group_by_name = {group[0]: group for group in groups if group[0] in data.devices}
    models = {
        name: learn(family, folder, settings, unseen=group, progress=progress)
        for name, group in group_by_name.items()
    }
    small = learn(family, folder, settings, keep=small_shape_rows, progress=progress)
    return with_experiment_intervals({**models, SMALLER: small}, data, device)


def with_experiment_intervals(
    models: Mapping[str, Weights], data: Measurements, device: Hardware
) -> dict[str, Weights]:
    """Return the models of experiments with intervals from the errors of the other models."""
    needs = _needed_by_experiment(models, data)
    adjusted = {
        name: replace(model, unseen=unseen_width([n for m, n in needs.items() if m != name]))
        for name, model in models.items()
        if name != SMALLER
    }
    without_widening = replace(models[SMALLER], octave=0.0, octaves=())
    scored_rows = score_rows(without_widening, data, device, without_widening.launches)
    return {**adjusted, SMALLER: _with_octave_widths(without_widening, scored_rows)}


def interval_fields(models: Mapping[str, Weights], folder: str | Path) -> dict[str, Any]:
    """Return the intervals outside the training range from all experiments, as weights' fields."""
    small = models[SMALLER]
    data, _ = read(small.family.name, folder)
    unseen = unseen_width(list(_needed_by_experiment(models, data).values()))
    return {"unseen": unseen, "octave": small.octave, "octaves": small.octaves}


Needs = list[NDArray[np.float64]]
"""Half widths that rows of excluded cards need, by card and op."""


def unseen_width(groups: Sequence[Needs]) -> float:
    """Return half a 90 % interval for an unseen device, from groups of similar excluded devices.

    It is the half width that contains 90 % of their rows, with equal weights of devices and of ops
    of a device, times ``sqrt(1 + 1/J)`` for J devices: the next device differs from them as they
    differ from the mean of all devices. Of five such rules on training rows of excluded cards, two
    had a coverage of 85 to 95 % for most cards and ops (8 of 26); of these two, this rule is below
    85 % less often (2 times, not 6). Its interval score [Gneiting and Raftery 2007] is 1.20. The
    score of the largest need of any card and op is 1.32; of that plus one part in J, 1.84.
    """
    values = [errors for group in groups for errors in group]
    shares = [np.full(len(e), 1 / len(e) / len(g)) for g in groups for e in g]
    errors, share = np.concatenate(values), np.concatenate(shares)
    order = np.argsort(errors)
    position = np.searchsorted(np.cumsum(share[order]), 0.9 * share.sum())
    width = float(errors[order][min(int(position), len(order) - 1)])
    return round(width * math.sqrt(1 + 1 / len(groups)), 4)


def _needed_by_experiment(models: Mapping[str, Weights], data: Measurements) -> dict[str, Needs]:
    """Return by experiment the half widths that excluded cards need beyond the usual intervals."""
    needed: dict[str, Needs] = {}
    for name, model in models.items():
        if name == SMALLER:
            continue
        without_widening = replace(model, unseen=0.0)
        scored_rows = score_rows(
            without_widening,
            data,
            _devices_by_datasheet(without_widening, data),
            without_widening.launches,
        )
        cards = [c for c in model.made["without"] if c in data.devices]
        needed[name] = [
            need for card in cards for need in _needed_by_op(scored_rows, data.rows_of(card))
        ]
    return needed


def _needed_by_op(scored_rows: ScoredRows, rows: Flags) -> Needs:
    """Return the half widths that rows need, by op, for ops that pricing uses.

    Ops without measurements on another device are omitted.
    """
    data = scored_rows.data
    priced_ops = learned_families()[data.name].campaign.priced_ops or data.ops
    ops = [
        i for i, op in enumerate(data.ops) if op in priced_ops and (~rows & (data.op == i)).any()
    ]
    widths = [_needed_widths(scored_rows, rows & (scored_rows.data.op == op)) for op in ops]
    return [errors for errors in widths if errors.size]


def _devices_by_datasheet(model: Weights, data: Measurements) -> Hardware:
    """Return the device of each row; devices excluded from training have only datasheets."""
    return devices_of(data, unseen=tuple(model.made["without"]))


def _needed_widths(scored_rows: ScoredRows, rows: Flags) -> NDArray[np.float64]:
    """Return the independent error to add to the widths of training rows, one value per row.

    Only kernels that outlast their launch are used.
    """
    kernel, outlasts = scored_rows.kernels()
    keep = rows & outlasts & ~scored_rows.data.dev
    error = np.log(kernel[keep] / scored_rows.estimates.time[keep]).astype(np.float64)
    model_width = scored_rows.estimates.width[keep].astype(np.float64)
    return np.asarray(np.sqrt(np.maximum(error**2 - model_width**2, 0.0)), np.float64)


def _with_octave_widths(small: Weights, scored_rows: ScoredRows) -> Weights:
    """Return weights whose 90 % intervals are valid for the largest training rows, by op, card."""
    kernel, outlasts = scored_rows.kernels()
    data, beyond = scored_rows.data, scored_rows.estimates.beyond
    rows = ~data.dev & ~small_shape_rows(data) & outlasts & (beyond > SLACK)
    error = np.abs(np.log(kernel / scored_rows.estimates.time))
    shortfall = np.maximum(error - scored_rows.estimates.width, 0) / np.maximum(beyond, SLACK)
    far = rows & (beyond > 1)
    octave = max(_q90(shortfall[far]), MIN_OCTAVE_WIDTH) if far.any() else MIN_OCTAVE_WIDTH
    cards = small.family.campaign.cards
    octaves = np.full((len(data.ops), len(cards) + 1), octave)
    for op, (column, card) in product(range(len(data.ops)), enumerate(cards)):
        selected = (
            rows & (data.op == op) & data.rows_of(card) if card in data.devices else rows & False
        )
        if selected.sum() >= MIN_CALIBRATION_ROWS:
            octaves[op, column] = max(_q90(shortfall[selected]), MIN_MEASURED_OCTAVE_WIDTH)
    return replace(small, octave=octave, octaves=tuple(tuple(map(float, r)) for r in octaves))


def _q90(values: NDArray[Any]) -> float:
    return round(float(np.quantile(values, 0.9)), 4)
