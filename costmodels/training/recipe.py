"""Training of a family's weights from a folder of measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.devices.library import load_device
from costmodels.families import learned_families
from costmodels.learnable.hardware import Hardware, datasheet_only, figures
from costmodels.learnable.launch import Flags, Launches
from costmodels.learnable.measurements import Measurements
from costmodels.learnable.settings import Settings
from costmodels.learned.weights import Weights
from costmodels.training.score import LONG_US, launch_columns, score_rows
from costmodels.training.train import Rows, fit, recalibrate_intervals


def read(family: str, folder: str | Path) -> tuple[Measurements, Hardware]:
    """Return a family's measurements and the device of each row."""
    declared = learned_families()[family]
    data = declared.campaign.read(Path(folder), family, declared.ops, declared.sizes)
    return data, devices_of(data)


def devices_of(data: Measurements, *, unseen: tuple[str, ...] = ()) -> Hardware:
    """Return the device of each row; devices in ``unseen`` have only datasheet figures."""
    campaign = learned_families()[data.name].campaign
    sheets = [load_device(name) for name in data.devices]
    sheets = [datasheet_only(s) if s.name in unseen else s for s in sheets]
    hardware = campaign.hardware(sheets)
    for column, name in zip(hardware.indicators, campaign.cards, strict=True):
        if name in unseen:
            column[:] = 0
    return hardware.rows(data.device)


def launches(family: str, folder: str | Path) -> Launches:
    """Return the host's share in a family's measurements, by op and device."""
    declared = learned_families()[family]
    similar = launches(declared.similar, folder) if declared.similar else {}
    data, device = read(family, folder)
    base = declared.inputs(data.sizes, device).base
    return declared.launches(data, device, base, similar)


def learn(
    family: str,
    folder: str | Path,
    settings: Settings,
    *,
    keep: Callable[[Measurements], Flags] | None = None,
    unseen: tuple[str, ...] = (),
    progress: Callable[[int], None] | None = None,
) -> Weights:
    """Train a family on the training split; return weights with their errors on held-out rows.

    Args:
        family: the name of a learned family.
        folder: folder or file of measurements.
        settings: settings of the training.
        keep: function that selects rows to train on, among the rows of the training split.
        unseen: devices excluded from training, and described only by their datasheets after it.
        progress: called with the number of steps of each completed chunk.
    """
    declared = learned_families()[family]
    data, _ = read(family, folder)
    device = devices_of(data, unseen=unseen)
    host_launches = launches(family, folder)
    allowed = _trainable_rows(data, keep, unseen)
    weights = fit(declared, _rows(data, device, host_launches, allowed), settings, progress)
    metadata = {
        "settings": to_builtins(settings),
        "without": list(unseen),
        "rows": int(allowed.sum()),
        "devices": [name for name in data.devices if name not in unseen],
        "data": {data.source: data.sha256},
        "sheets": {name: figures(load_device(name)) for name in data.devices},
        "versions": _versions(),
    }
    finished = replace(weights, launches=host_launches, made=metadata)
    errors = held_out_errors(finished, data, device)
    return replace(finished, made={**metadata, "held_out_pct": errors})


def recalibrate(
    weights: Weights, folder: str | Path, *, keep: Callable[[Measurements], Flags] | None = None
) -> Weights:
    """Return weights with intervals recalibrated on the calibration rows of their training.

    Only for networks that were not refitted on all rows; ``keep`` is as for ``learn``.
    """
    family, unseen = weights.family.name, tuple(weights.made["without"])
    data, _ = read(family, folder)
    device, host_launches = devices_of(data, unseen=unseen), launches(family, folder)
    rows = _rows(data, device, host_launches, _trainable_rows(data, keep, unseen))
    rescaled = recalibrate_intervals(weights, rows, int(weights.made["settings"]["seed"]))
    errors = held_out_errors(rescaled, data, device)
    return replace(rescaled, made={**weights.made, "held_out_pct": errors})


def _trainable_rows(
    data: Measurements, keep: Callable[[Measurements], Flags] | None, unseen: tuple[str, ...]
) -> Flags:
    """Return the mask of the rows to train on."""
    allowed = ~data.dev & (True if keep is None else keep(data))
    for name in set(unseen) & set(data.devices):
        allowed &= ~data.rows_of(name)
    return allowed


def _rows(data: Measurements, device: Hardware, host_launches: Launches, allowed: Flags) -> Rows:
    """Return the rows to train on; rows of some ops are repeated."""
    declared = learned_families()[data.name]
    before, hidden = launch_columns(data, host_launches)
    slow = declared.campaign.throttled
    throttled = np.isin(data.device, [i for i, n in enumerate(data.devices) if n in slow])
    row_index = _row_index(data, allowed, declared.campaign.repeat)
    return Rows(
        declared.inputs(data.sizes, device).select(row_index),
        data.times[row_index],
        before[row_index],
        hidden[row_index],
        data.op[row_index],
        _shapes(data, declared.campaign.pairs)[row_index],
        ~throttled[row_index],
    )


def _shapes(data: Measurements, pairs: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the number of each row's combination of sizes (of ``pairs``, or all), sorted."""
    sizes = np.stack([data.sizes[name] for name in pairs], 1) if pairs else data.shapes()
    return np.unique(sizes, axis=0, return_inverse=True)[1].reshape(-1)


def _row_index(
    data: Measurements, allowed: NDArray[np.bool_], repeat: Mapping[str, int]
) -> NDArray[np.intp]:
    """Return the indices of the rows to train on; indices of some ops are repeated."""
    repeats = np.asarray([repeat.get(op, 1) for op in data.ops])[data.op]
    return np.repeat(np.arange(len(data.times)), np.where(allowed, repeats, 0))


def held_out_errors(weights: Weights, data: Measurements, device: Hardware) -> dict[str, Any]:
    """Return errors on held-out rows by op and device: of all rows, and of rows from 0.1 ms."""
    scored_rows = score_rows(weights, data, device, weights.launches)
    result: dict[str, Any] = {}
    for number, op in enumerate(data.ops):
        for name in data.devices:
            rows = data.dev & data.rows_of(name) & (data.op == number)
            parts = {"all": rows, "long": rows & (data.times >= LONG_US)}
            scores = {p: scored_rows.score(r).as_percent() for p, r in parts.items() if r.any()}
            if scores:
                result[f"{op} {name}"] = scores
    return result


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("jax", "flax", "optax", "numpy")}
