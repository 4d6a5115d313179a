"""Trained models as safetensors files: weights, training range, and record of the training."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct, field

from costmodels.families import learned_families
from costmodels.learnable.family import LearnedFamily
from costmodels.learnable.hardware import Floats
from costmodels.learnable.launch import HostLaunch, Launches
from costmodels.learned.files import Layers, load_network, save_network
from irgraph.diagnostics import SourceSpan, fail, suggestion

ByCard: TypeAlias = tuple[tuple[float, ...], ...]
"""Figures by op and card."""

KIND, FORMAT = "irgraph", 2
TENSORS = ("low", "high", "mean", "scale", "extent")


class Weights(Struct, frozen=True):
    """A trained ensemble of a family.

    Attributes:
        family: the family that it predicts.
        layers: weights (members, out, in) and biases (members, out) of each layer.
        low, high: range of every input in training, (inputs,).
        mean, scale: mean and scale of every input in training, (inputs,).
        extent: minimum and maximum extent of each op's kernels in training, (2, ops).
        stretch: factor from predicted scales of log errors to half a 90 % interval.
        stretches: such factors by op, if rows of many kinds were held out; else empty.
        cards: factors on ``stretch`` by op and training card, the last one for other cards; empty
            for 1.
        unseen: half a 90 % interval of log errors on an unseen device.
        octave: increase of that interval for each octave outside the range of training.
        octaves: such increases by op and training card, the last one for other cards; else empty.
        launches: the host's share of measured times.
        made: record of the training and its held-out errors, as plain values.
    """

    family: LearnedFamily
    layers: Layers
    low: Floats
    high: Floats
    mean: Floats
    scale: Floats
    extent: Floats
    stretch: float
    stretches: tuple[float, ...] = ()
    unseen: float = 0.0
    octave: float = 0.0
    cards: ByCard = ()
    octaves: ByCard = ()
    launches: Launches = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)


def save(weights: Weights, path: str | Path) -> None:
    """Write weights to a file atomically; files of equal weights are identical."""
    head = {
        "format": FORMAT,
        "family": weights.family.name,
        "stretch": weights.stretch,
        **({"stretches": weights.stretches} if weights.stretches else {}),
        "unseen": weights.unseen,
        "octave": weights.octave,
        **({"cards": weights.cards} if weights.cards else {}),
        **({"octaves": weights.octaves} if weights.octaves else {}),
        "launches": [
            [*key, x.before, x.hidden, x.drift] for key, x in sorted(weights.launches.items())
        ],
        "made": dict(weights.made),
    }
    tensors = {name: getattr(weights, name) for name in TENSORS}
    save_network(path, KIND, head, weights.layers, **tensors)


def load(path: str | Path) -> Weights:
    """Read a weights file. Raises ``IrgraphError`` if it is not one, or of another format."""
    span = SourceSpan(str(path))
    head, layers, tensors = load_network(path, KIND)
    if head.get("format") != FORMAT or head.get("family") not in learned_families():
        raise fail(f"not weights of irgraph's format {FORMAT}", span)
    missing = set(TENSORS) - set(tensors)
    if missing:
        raise fail(f"weights hold no tensor {min(missing)!r}", span)
    low, high, mean, scale, extent = (tensors[name] for name in TENSORS)
    stretch, unseen, octave = (float(head[name]) for name in ("stretch", "unseen", "octave"))
    launches = {
        (op, device): HostLaunch(a, b, tuple(c)) for op, device, a, b, c in head["launches"]
    }
    cards, octaves = (tuple(map(tuple, head.get(name, ()))) for name in ("cards", "octaves"))
    return Weights(
        learned_families()[head["family"]],
        layers,
        low,
        high,
        mean,
        scale,
        extent,
        stretch,
        tuple(head.get("stretches", ())),
        unseen,
        octave,
        cards,
        octaves,
        launches,
        head["made"],
    )


def shipped_models() -> tuple[str, ...]:
    """Return the names of the learned families with trained weights, sorted."""
    return tuple(sorted(n for n, family in learned_families().items() if family.weights.is_file()))


@cache
def load_shipped(family: str) -> Weights:
    """Return a family's trained weights. Raises ``IrgraphError`` for an unknown one."""
    if family not in shipped_models():
        raise fail(
            f"no trained model of family {family!r}{suggestion(family, shipped_models())}",
            hint="`irgraph models` lists them",
            exit_code=2,
        )
    return load(learned_families()[family].weights)


def parameters(weights: Weights) -> int:
    """Return the number of weights and biases of a prediction."""
    return int(sum(np.size(part) for layer in weights.layers for part in layer))
