"""Extrapolation of a family's model: to devices left out, and to larger shapes.

The errors found there are the widths of the intervals that it gives there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.families import learned_families
from costmodels.learnable.launch import Flags
from costmodels.learnable.measurements import Measurements
from costmodels.learnable.settings import Architecture, Settings
from costmodels.learned.weights import Weights
from costmodels.training.recipe import devices_of, learn, read
from costmodels.training.score import Judged, judge

SMALLER = "smaller-shapes"
"""Name of the model that has not seen the largest shapes."""
OCTAVES, LARGEST = 3, 0.9
"""The largest shapes are those above this quantile of an op's volume; training ends so many octaves
of volume below them."""
LEAST = 0.05
"""Least 90 % interval of a log error that an octave beyond the training range adds."""


def short(settings: Settings) -> Settings:
    """Return settings for an experiment: half the steps, two members, no refit.

    Where there are so many rows that nothing is trained again, a quarter and one.
    """
    shape = settings.architecture
    if not settings.refit:
        return replace(settings, steps=settings.steps // 4, architecture=replace(shape, members=1))
    members = Architecture(shape.width, shape.depth, min(shape.members, 2))
    return replace(settings, steps=settings.steps // 2, architecture=members, refit=False)


def volume(data: Measurements) -> NDArray[np.float64]:
    """Return the product of all sizes of each row; for products of matrices, half their FLOP."""
    return np.asarray(np.prod(data.shapes().astype(np.float64), 1))


def thresholds(data: Measurements) -> NDArray[np.float64]:
    """Return for each row the volume from which a shape of its op counts as one of the largest."""
    sizes = volume(data)
    limits = [
        np.quantile(sizes[~data.dev & (data.op == number)], LARGEST)
        for number in range(len(data.ops))
    ]
    return np.asarray(limits)[data.op]


def smaller(data: Measurements) -> Flags:
    """Return the rows that lie ``OCTAVES`` or more below the largest shapes of their op."""
    return np.asarray(volume(data) * 2**OCTAVES <= thresholds(data))


def experiments(
    family: str,
    folder: str | Path,
    settings: Settings,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Weights]:
    """Return the models of a family that were kept from a device or from large shapes, by name.

    Each left-out device's model takes the width of its intervals there from the errors on the
    other left-out devices (``_strangeness``), never from its own.
    """
    data, device = read(family, folder)
    settings = short(settings)
    groups = learned_families()[family].campaign.apart
    apart = {group[0]: group for group in groups if group[0] in data.devices}
    models = {
        name: learn(family, folder, settings, unseen=group, progress=progress)
        for name, group in apart.items()
    }
    errors = {n: _by_op(_strange(m, data, n), data.of(n)) for n, m in models.items()}
    found = {}
    for name, model in models.items():
        others = [values for n, values in errors.items() if n != name]
        found[name] = replace(model, unseen=_strangeness(others))
    small = learn(family, folder, settings, keep=smaller, progress=progress)
    judged = judge(small, data, device, small.launches)
    return {**found, SMALLER: replace(small, octave=_octave(small, judged))}


def doubts(models: Mapping[str, Weights], folder: str | Path) -> tuple[float, float]:
    """Return the width on an unseen device, and that an octave adds, from all experiments."""
    family = models[SMALLER].family.name
    data, _ = read(family, folder)
    strange = {n: m for n, m in models.items() if n != SMALLER}
    errors = [_by_op(_strange(m, data, n), data.of(n)) for n, m in strange.items()]
    return _strangeness(errors), models[SMALLER].octave


def _strangeness(devices: Sequence[Sequence[NDArray[np.float64]]]) -> float:
    """Return half a 90 % interval for another device, from errors by device left out and op.

    It is the widest that any of them needed for any op, and more, as the next device may need more
    than the few tried: of J draws the largest falls short of the limit by one part in J + 1 [the
    German tank problem, Goodman 1952].
    """
    widest = max(_q90(errors) for device in devices for errors in device)
    return round(widest * (1 + 1 / len(devices)), 4)


def _by_op(judged: Judged, rows: Flags) -> list[NDArray[np.float64]]:
    """Return absolute log errors by op, of ops that pricing asks about.

    Those that no other device was measured for tell nothing.
    """
    data = judged.data
    asked = learned_families()[data.name].campaign.asked or data.ops
    ops = [i for i, op in enumerate(data.ops) if op in asked and (~rows & (data.op == i)).any()]
    found = [_log_errors(judged, rows & (judged.data.op == op)) for op in ops]
    return [errors for errors in found if errors.size]


def _strange(model: Weights, data: Measurements, name: str) -> Judged:
    """Score a model on a device that it knows by its datasheet alone."""
    return judge(model, data, devices_of(data, unseen=(name,)), model.launches)


def _log_errors(judged: Judged, rows: Flags) -> NDArray[np.float64]:
    """Return absolute log errors of kernels that outlast their launch, on training rows."""
    kernel, outlasts = judged.kernels()
    keep = rows & outlasts & ~judged.data.dev
    ratio = np.log(kernel[keep] / judged.estimates.time[keep])
    return np.asarray(np.abs(ratio), np.float64)


def _octave(model: Weights, judged: Judged) -> float:
    """Return the width that makes 90 % intervals hold on the largest training rows."""
    kernel, outlasts = judged.kernels()
    beyond = judged.estimates.beyond
    rows = ~judged.data.dev & ~smaller(judged.data) & outlasts & (beyond > 1)
    if not rows.any():
        return LEAST
    error = np.abs(np.log(kernel[rows] / judged.estimates.time[rows]))
    short_of = np.maximum(error - judged.estimates.width[rows], 0) / beyond[rows]
    return max(_q90(short_of) + model.octave, LEAST)


def _q90(values: NDArray[np.float64]) -> float:
    return round(float(np.quantile(values, 0.9)), 4)
