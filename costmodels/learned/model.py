"""The network: a small MLP with three outputs, in Flax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OUTPUTS = 3
"""Logarithms (base e) of: kernel time over base; scale of the error of the first; floor of the
measured time over the usual floor of the op."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Size of a network and of the ensemble that shares its training rows.

    Attributes:
        width: units of each hidden layer.
        depth: hidden layers.
        members: networks that differ in seed; their mean is the prediction.
    """

    width: int = 128
    depth: int = 3
    members: int = 3


def network(architecture: Architecture) -> Any:  # noqa: ANN401  (a Flax module; Flax loads here)
    """Return an untrained MLP: ReLU hidden layers of equal width, ``OUTPUTS`` outputs."""
    from flax import linen

    layers: list[Any] = []
    for _ in range(architecture.depth):
        layers += [linen.Dense(architecture.width), linen.relu]
    zero = linen.initializers.zeros_init()
    return linen.Sequential([*layers, linen.Dense(OUTPUTS, kernel_init=zero)])
