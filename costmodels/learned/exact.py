"""Networks whose answer for a row does not depend on the rows beside it, to the last digit.

A library adds up the terms of a product in an order that depends on the sizes of the matrices, so
that one row alone and the same row among many would differ by rounding. Here weights and
activations are whole multiples of a power of two, so few bits wide that every product and every
sum of them is exact in 53 bits: then any order gives the same figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.learned.files import Layers

Doubles = NDArray[np.float64]

BITS = 53
"""Bits of whole numbers that a float64 holds exactly."""
WEIGHT_BITS = 23
"""Bits of the largest weight: those of a float32."""
MOST = 128.0
"""Bound on what a layer takes in, in standard deviations or as an activation; training reached
less than a tenth of it inside the network, and inputs are clipped to the range of training."""
BLOCK = 128
"""Rows that go through the network together, so that activations stay in cache."""


class ExactLayer(Struct, frozen=True):
    """A layer in whole numbers.

    Attributes:
        weights: multiples of the weights' unit, ``float64[members, outputs, inputs]``.
        bias: ``float64[members, outputs, 1]``.
        up: multiples of their unit in one, for what the layer takes in.
        down: what one whole number of the product stands for.
    """

    weights: Doubles
    bias: Doubles
    up: float
    down: float


def exact_layers(layers: Layers) -> tuple[ExactLayer, ...]:
    """Return layers in whole numbers, those of the same arrays once."""
    return _known(tuple(_ById(matrix, bias) for matrix, bias in layers))


class _ById:
    """A layer's arrays, told apart by which objects they are."""

    def __init__(self, matrix: NDArray[np.float32], bias: NDArray[np.float32]) -> None:
        self.matrix, self.bias = matrix, bias

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _ById):
            return NotImplemented
        return self.matrix is other.matrix and self.bias is other.bias

    def __hash__(self) -> int:
        return hash((id(self.matrix), id(self.bias)))


@lru_cache(maxsize=64)
def _known(layers: tuple[_ById, ...]) -> tuple[ExactLayer, ...]:
    return tuple(_exact(layer.matrix, layer.bias) for layer in layers)


def _exact(matrix: NDArray[np.float32], bias: NDArray[np.float32]) -> ExactLayer:
    """Return one layer, with units such that no sum of products takes more than ``BITS`` bits."""
    weights = matrix.astype(np.float64)
    largest = max(float(np.abs(weights).max(initial=0.0)), 2.0**-WEIGHT_BITS)
    scale = 2.0 ** (WEIGHT_BITS - int(np.ceil(np.log2(largest))))
    whole = np.rint(weights * scale)
    sums = max(float(np.abs(whole).sum(-1).max(initial=0.0)), 1.0)
    up = 2.0 ** int(np.floor(BITS - np.log2(sums * MOST + 1)))
    return ExactLayer(whole, bias.astype(np.float64)[..., None], up, 1.0 / (scale * up))


def exact_forward(layers: Sequence[ExactLayer], inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the outputs of every member, (members, outputs, rows), of inputs (inputs, rows)."""
    members, results = len(layers[0].weights), layers[-1].weights.shape[1]
    rows = inputs.shape[1]
    outputs = np.empty((members, results, rows), np.float32)
    for start in range(0, rows, BLOCK):
        some = slice(start, start + BLOCK)
        first = np.clip(inputs[:, some].astype(np.float64), -MOST, MOST)
        first *= layers[0].up
        np.rint(first, out=first)
        for member in range(members):
            outputs[member, :, some] = _member(layers, member, first)
    return outputs


def _member(layers: Sequence[ExactLayer], member: int, first: Doubles) -> Doubles:
    """Return one member's outputs, (outputs, rows), of whole multiples of the inputs' unit."""
    values = first
    for layer, following in zip(layers, (*layers[1:], None), strict=True):
        values = layer.weights[member] @ values
        values *= layer.down
        values += layer.bias[member]
        if following is not None:
            np.clip(values, 0.0, MOST, out=values)
            values *= following.up
            np.rint(values, out=values)
    return values
