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

    Units are powers of two: what is multiplied by them keeps all its digits.

    Attributes:
        weights: multiples of the weights' unit, ``float64[members, outputs, inputs]``.
        bias: ``float64[members, outputs, 1]``.
        up: multiples of their unit in one, for what the layer takes in.
        down: what one whole number of the product stands for.
        scaled: the weights by input, such that products are in the unit that the next layer takes
            in, ``float64[members, inputs, outputs]``.
        raised: the bias in that unit.
        most: ``MOST`` in that unit.
    """

    weights: Doubles
    bias: Doubles
    up: float
    down: float
    scaled: Doubles
    raised: Doubles
    most: float


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
    found: list[ExactLayer] = []
    following = 1.0
    for layer in reversed(layers):
        found.append(_exact(layer.matrix, layer.bias, following))
        following = found[-1].up
    return tuple(reversed(found))


def _exact(matrix: NDArray[np.float32], bias: NDArray[np.float32], following: float) -> ExactLayer:
    """Return one layer, with units such that no sum of products takes more than ``BITS`` bits.

    ``following`` is how many units of the next layer's inputs are in one.
    """
    weights = matrix.astype(np.float64)
    largest = max(float(np.abs(weights).max(initial=0.0)), 2.0**-WEIGHT_BITS)
    scale = 2.0 ** (WEIGHT_BITS - int(np.ceil(np.log2(largest))))
    whole = np.rint(weights * scale)
    sums = max(float(np.abs(whole).sum(-1).max(initial=0.0)), 1.0)
    up = 2.0 ** int(np.floor(BITS - np.log2(sums * MOST + 1)))
    down, wide = 1.0 / (scale * up), bias.astype(np.float64)[..., None]
    scaled = np.ascontiguousarray((whole * (down * following)).transpose(0, 2, 1))
    return ExactLayer(whole, wide, up, down, scaled, wide * following, MOST * following)


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
    """Return one member's outputs, (outputs, rows), of whole multiples of the inputs' unit.

    What is zero in all rows of a layer adds nothing to the next, which leaves it out: rows beside
    each other are often of sizes near each other, and half of a layer is zero in all of them.
    """
    values: Doubles = first
    used: NDArray[np.intp] | None = None
    for layer in layers[:-1]:
        weights = layer.scaled[member]
        values = (weights if used is None else weights.take(used, 0)).T @ values
        values += layer.raised[member]
        used = np.flatnonzero((values > 0.0).any(1))
        values = values.take(used, 0)
        np.clip(values, 0.0, layer.most, out=values)
        np.rint(values, out=values)
    weights = layers[-1].scaled[member]
    values = (weights if used is None else weights.take(used, 0)).T @ values
    values += layers[-1].raised[member]
    return values
