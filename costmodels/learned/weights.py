"""Trained models as safetensors files: weights, range of training, and what made them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from costmodels.learned.features import FAMILIES, Family
from costmodels.learned.hardware import Floats
from costmodels.learned.launch import Launch, Launches
from irgraph.text.diagnostics import Place, fail, near

FORMAT = 2
FOLDER = Path(__file__).parent.parent / "weights"
"""Where the shipped weights lie."""

Layers = tuple[tuple[Floats, Floats], ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """A trained ensemble of a family.

    Attributes:
        family: what it predicts.
        layers: weights (members, out, in) and biases (members, out) of each layer.
        low, high: range of every input in training, (inputs,).
        mean, scale: of every input in training, (inputs,).
        extent: least and largest extent of each op's kernels in training, (2, ops).
        stretch: factor from predicted scales of log errors to half a 90 % interval.
        unseen: half a 90 % interval of log errors on a device that training has not seen.
        octave: what each octave outside the range of training adds to it.
        launches: the host's share of what was measured.
        made: what it was trained on and how, and its held-out errors, as plain values.
    """

    family: Family
    layers: Layers
    low: Floats
    high: Floats
    mean: Floats
    scale: Floats
    extent: Floats
    stretch: float
    unseen: float = 0.0
    octave: float = 0.0
    launches: Launches = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)


def save(weights: Weights, path: str | Path) -> None:
    """Write weights to a file, whole or not at all; equal weights give equal bytes."""
    from safetensors.numpy import save as encode

    from irgraph.report.files import write_atomic

    tensors = {name: getattr(weights, name) for name in ("low", "high", "mean", "scale", "extent")}
    for number, (matrix, bias) in enumerate(weights.layers):
        tensors |= {f"layer{number}.weight": matrix, f"layer{number}.bias": bias}
    head = {
        "format": FORMAT,
        "family": weights.family.name,
        "stretch": weights.stretch,
        "unseen": weights.unseen,
        "octave": weights.octave,
        "launches": [
            [*key, x.before, x.hidden, x.drift] for key, x in sorted(weights.launches.items())
        ],
        "made": dict(weights.made),
    }
    data = encode(tensors, {"irgraph": json.dumps(head, sort_keys=True)})
    write_atomic(str(path), data)


def load(path: str | Path) -> Weights:
    """Read a weights file. Raises ``IrgraphError`` where it is none, or of another format."""
    from safetensors import SafetensorError, safe_open

    place = Place(str(path))
    try:
        with safe_open(str(path), "numpy") as file:
            head = json.loads((file.metadata() or {}).get("irgraph", "null"))
            tensors: dict[str, Floats] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no iterator)
    except (OSError, SafetensorError) as error:
        raise fail(f"cannot read weights: {error}", place, exit_code=2) from None
    if not head or head.get("format") != FORMAT or head.get("family") not in FAMILIES:
        raise fail(f"not weights of irgraph's format {FORMAT}", place)
    missing = {"low", "high", "mean", "scale", "extent"} - set(tensors)
    if missing:
        raise fail(f"weights hold no tensor {min(missing)!r}", place)
    family = FAMILIES[head["family"]]
    depth = sum(name.endswith(".bias") for name in tensors)
    layers = tuple((tensors[f"layer{i}.weight"], tensors[f"layer{i}.bias"]) for i in range(depth))
    return Weights(
        family,
        layers,
        tensors["low"],
        tensors["high"],
        tensors["mean"],
        tensors["scale"],
        tensors["extent"],
        float(head["stretch"]),
        float(head["unseen"]),
        float(head["octave"]),
        {(op, device): Launch(a, b, tuple(c)) for op, device, a, b, c in head["launches"]},
        head["made"],
    )


def shipped() -> tuple[str, ...]:
    """Return the families whose weights are shipped, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.safetensors")))


@cache
def load_shipped(family: str) -> Weights:
    """Return a family's shipped weights. Raises ``IrgraphError`` for an unknown one."""
    if family not in shipped():
        raise fail(
            f"no trained model of family {family!r}{near(family, shipped())}",
            hint="`irgraph models` lists them",
            exit_code=2,
        )
    return load(FOLDER / f"{family}.safetensors")


def parameters(weights: Weights) -> int:
    """Return how many weights and biases a prediction uses."""
    return int(sum(np.size(part) for layer in weights.layers for part in layer))
