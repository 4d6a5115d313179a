"""Networks in Flax, and their weights as plain arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from costmodels.learned.files import Layers


def network(width: int, depth: int, outputs: int, *, from_zero: bool = True) -> Any:  # noqa: ANN401  (a Flax module; Flax loads here)
    """Return an untrained MLP: ReLU hidden layers of equal width.

    With ``from_zero`` the last layer, and so every output, is initially zero.
    """
    from flax import linen

    layers: list[Any] = []
    for _ in range(depth):
        layers += [linen.Dense(width), linen.relu]
    start = {"kernel_init": linen.initializers.zeros_init()} if from_zero else {}
    return linen.Sequential([*layers, linen.Dense(outputs, **start)])


def plain_layers(params: dict[str, Any]) -> Layers:
    """Return Flax's weights as numpy arrays, outputs before inputs, in order of layers."""
    names = sorted(params, key=lambda name: int(name.rpartition("_")[2]))
    return tuple(
        (
            np.ascontiguousarray(np.asarray(params[name]["kernel"]).transpose(0, 2, 1)),
            np.asarray(params[name]["bias"]),
        )
        for name in names
    )
