"""From a folder of measurements to a family's trained weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.learned.convolving import fastest
from costmodels.learned.data import Measurements, read_measurements
from costmodels.learned.features import FAMILIES, Inputs
from costmodels.learned.hardware import (
    KNOWN,
    THROTTLED,
    Hardware,
    datasheet_only,
    figures,
    hardware,
)
from costmodels.learned.launch import (
    Flags,
    Launches,
    borrowed_launches,
    convolution_launches,
    elementwise_launches,
    gemm_launches,
)
from costmodels.learned.model import Architecture
from costmodels.learned.score import LONG, judge, launch_columns
from costmodels.learned.train import Rows, Settings, fit
from costmodels.learned.weights import Weights
from costmodels.sheet import load_device

_SMALL = Architecture(64)
_ROWS = Settings(steps=3000, batch=256, decay=0.3, architecture=Architecture(64, 3, 8))
SETTINGS = {
    "gemm": Settings(steps=9000),
    "conv2d": Settings(steps=2500, batch=256, decay=0.3, architecture=Architecture(64, 3, 8)),
    "elementwise": Settings(steps=3000, batch=1024, architecture=_SMALL),
    "softmax": _ROWS,
    "layer_norm": _ROWS,
}
"""How each family is trained unless told otherwise. Chosen on training rows kept aside by shape."""


def read(family: str, folder: str | Path) -> tuple[Measurements, Hardware]:
    """Return a family's measurements and the device of each row."""
    data = read_measurements(folder, FAMILIES[family])
    return data, devices_of(data)


def devices_of(data: Measurements, *, unseen: tuple[str, ...] = ()) -> Hardware:
    """Return the device of each row; those in ``unseen`` by their datasheet alone."""
    sheets = [load_device(name) for name in data.devices]
    sheets = [datasheet_only(s) if s.name in unseen else s for s in sheets]
    found = hardware(*sheets)
    for column, name in zip(found.known, KNOWN, strict=True):
        if name in unseen:
            column[:] = 0
    return found.rows(data.device)


def launches(family: str, folder: str | Path) -> Launches:
    """Return the host's share in a family's measurements, by op and device.

    Softmax and layer norm hide what element-wise ops hide, convolutions what ``linear`` hides.
    """

    def base(name: str) -> tuple[Measurements, Hardware, Inputs]:
        data, device = read(name, folder)
        return data, device, FAMILIES[name].inputs(data.sizes, device)

    data, _, inputs = base("elementwise")
    simple = elementwise_launches(data, inputs.base)
    if family == "elementwise":
        return simple
    if family in ("softmax", "layer_norm"):
        data, _, inputs = base(family)
        return borrowed_launches(data, inputs.base, simple)
    data, device, inputs = base("gemm")
    products = gemm_launches(data, inputs.base, device, simple)
    if family == "gemm":
        return products
    data, device = read(family, folder)
    expected = fastest(data.sizes, device)
    return convolution_launches(data, expected, products, "linear")


def learn(
    family: str,
    folder: str | Path,
    settings: Settings,
    *,
    keep: Callable[[Measurements], Flags] | None = None,
    unseen: tuple[str, ...] = (),
    progress: Callable[[int], None] | None = None,
) -> Weights:
    """Train a family on the training split and note its errors on the held-out one.

    Args:
        family: a key of ``FAMILIES``.
        folder: measurements, as ``read_measurements`` takes them.
        settings: how to train.
        keep: which rows may be trained on, besides those of the training split.
        unseen: devices left out of training, and known by their datasheet alone after it.
        progress: told of each stretch of steps done.
    """
    data, _ = read(family, folder)
    device = devices_of(data, unseen=unseen)
    found = launches(family, folder)
    allowed = ~data.dev & (True if keep is None else keep(data))
    for name in unseen:
        allowed &= ~data.of(name)
    inputs = data.family.inputs(data.sizes, device)
    before, hidden = launch_columns(data, found)
    throttled = np.isin(data.device, [i for i, n in enumerate(data.devices) if n in THROTTLED])
    rows = Rows(
        inputs.where(allowed),
        data.times[allowed],
        before[allowed],
        hidden[allowed],
        data.op[allowed],
        _shapes(data)[allowed],
        ~throttled[allowed],
    )
    weights = fit(data.family, rows, settings, progress)
    made = {
        "settings": asdict(settings),
        "without": list(unseen),
        "rows": int(allowed.sum()),
        "devices": [name for name in data.devices if name not in unseen],
        "data": {f"kernels/{data.family.table}.csv.gz": data.sha256},
        "sheets": {name: figures(load_device(name)) for name in data.devices},
        "versions": _versions(),
    }
    finished = replace(weights, launches=found, made=made)
    held = held_out(finished, data, device)
    return replace(finished, made={**made, "held_out_pct": held})


def _shapes(data: Measurements) -> NDArray[np.int64]:
    """Number the combinations of sizes in the order of their values."""
    sizes = np.stack([data.sizes[name] for name in data.family.sizes], 1)
    return np.unique(sizes, axis=0, return_inverse=True)[1].reshape(-1)


def held_out(weights: Weights, data: Measurements, device: Hardware) -> dict[str, Any]:
    """Return errors on held-out rows by op and device, all and those measured from 0.1 ms on."""
    judged = judge(weights, data, device, weights.launches)
    found: dict[str, Any] = {}
    for number, op in enumerate(data.family.ops):
        for name in data.devices:
            rows = data.dev & data.of(name) & (data.op == number)
            parts = {"all": rows, "long": rows & (data.times >= LONG)}
            scored = {p: judged.score(r).as_percent() for p, r in parts.items() if r.any()}
            if scored:
                found[f"{op} {name}"] = scored
    return found


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("jax", "flax", "optax", "numpy")}
