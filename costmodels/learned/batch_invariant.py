"""Networks whose result for a row is independent of the other rows, to the last digit.

A library adds up the terms of a product in an order that depends on the sizes of the matrices: the
results for one row alone and for the same row among many would differ by rounding. Here weights and
activations are integer multiples of a power of two, narrow enough that every product and every sum
of them is exact in 53 bits: then any order gives the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.learned.files import Layers

Doubles = NDArray[np.float64]

BITS = 53
"""Bits of integers that a float64 represents exactly."""
WEIGHT_BITS = 23
"""Bits of the largest weight, as in a float32."""
MAX_INPUT = 128.0
"""Bound on the inputs of a layer, in standard deviations or as activations; in training less than a
tenth of it occurred inside the network, and inputs are clipped to the range of training."""
BLOCK = 2**14
"""Number of activations of a layer in a block of rows, chosen so that they remain in cache."""
JOINT_BLOCK = 2**16
"""Number of activations of all members in a block of rows."""


class ExactLayer(Struct, frozen=True):
    """A layer in integers.

    Units are powers of two: a multiplication by them preserves all digits.

    Attributes:
        weights: multiples of the weights' unit, ``float64[members, outputs, inputs]``.
        bias: ``float64[members, outputs, 1]``.
        up: number of input units in one.
        down: value of one in the product's integers.
        next_weights: the weights by input, scaled so that products are in the input unit of the
            next layer, ``float64[members, inputs, outputs]``.
        next_bias: the bias in that unit.
        max_input: ``MAX_INPUT`` in that unit.
    """

    weights: Doubles
    bias: Doubles
    up: float
    down: float
    next_weights: Doubles
    next_bias: Doubles
    max_input: float


def exact_layers(layers: Layers) -> tuple[ExactLayer, ...]:
    """Return layers in integers, cached by the identity of their arrays."""
    return _cached_layers(tuple(_IdentityKey(matrix, bias) for matrix, bias in layers))


class _IdentityKey:
    """A layer's arrays, compared by identity."""

    def __init__(self, matrix: NDArray[np.float32], bias: NDArray[np.float32]) -> None:
        self.matrix, self.bias = matrix, bias

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _IdentityKey):
            return NotImplemented
        return self.matrix is other.matrix and self.bias is other.bias

    def __hash__(self) -> int:
        return hash((id(self.matrix), id(self.bias)))


@lru_cache(maxsize=64)
def _cached_layers(layers: tuple[_IdentityKey, ...]) -> tuple[ExactLayer, ...]:
    exact_reversed: list[ExactLayer] = []
    next_up = 1.0
    for layer in reversed(layers):
        exact_reversed.append(_exact_layer(layer.matrix, layer.bias, next_up))
        next_up = exact_reversed[-1].up
    return tuple(reversed(exact_reversed))


def _exact_layer(
    matrix: NDArray[np.float32], bias: NDArray[np.float32], next_up: float
) -> ExactLayer:
    """Return one layer, with units such that every sum of products fits in ``BITS`` bits.

    ``next_up`` is the number of the next layer's input units in one.
    """
    weights = matrix.astype(np.float64)
    largest = max(float(np.abs(weights).max(initial=0.0)), 2.0**-WEIGHT_BITS)
    scale = 2.0 ** (WEIGHT_BITS - int(np.ceil(np.log2(largest))))
    integers = np.rint(weights * scale)
    sums = max(float(np.abs(integers).sum(-1).max(initial=0.0)), 1.0)
    up = 2.0 ** int(np.floor(BITS - np.log2(sums * MAX_INPUT + 1)))
    down, bias_column = 1.0 / (scale * up), bias.astype(np.float64)[..., None]
    next_weights = np.ascontiguousarray((integers * (down * next_up)).transpose(0, 2, 1))
    return ExactLayer(
        integers, bias_column, up, down, next_weights, bias_column * next_up, MAX_INPUT * next_up
    )


def exact_forward(layers: Sequence[ExactLayer], inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the outputs of every member, (members, outputs, rows), of inputs (inputs, rows)."""
    members, results = len(layers[0].weights), layers[-1].weights.shape[1]
    rows = inputs.shape[1]
    outputs = np.empty((members, results, rows), np.float32)
    step = max(BLOCK // max(layer.weights.shape[1] for layer in layers), 1)
    for start in range(0, rows, step):
        block = slice(start, start + step)
        first = _integers(inputs[:, block], layers[0].up)
        for member in range(members):
            outputs[member, :, block] = _member_outputs(layers, member, first)
    return outputs


def _member_outputs(layers: Sequence[ExactLayer], member: int, first: Doubles) -> Doubles:
    """Return one member's outputs, (outputs, rows), of integer multiples of the inputs' unit.

    Activations that are zero in all rows are omitted from the next layer: neighbouring rows often
    have similar sizes, and half of a layer is zero in all of them.
    """
    values: Doubles = first
    nonzero: NDArray[np.intp] | None = None
    for layer in layers[:-1]:
        weights = layer.next_weights[member]
        values = (weights if nonzero is None else weights.take(nonzero, 0)).T @ values
        values += layer.next_bias[member]
        nonzero = np.flatnonzero((values > 0.0).any(1))
        values = values.take(nonzero, 0)
        np.clip(values, 0.0, layer.max_input, out=values)
        np.rint(values, out=values)
    weights = layers[-1].next_weights[member]
    values = (weights if nonzero is None else weights.take(nonzero, 0)).T @ values
    values += layers[-1].next_bias[member]
    return values


def exact_joint_forward(
    layers: Sequence[ExactLayer],
    first: NDArray[np.float32],
    positions: NDArray[np.intp],
    inputs: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return the outputs of ``exact_forward`` for rows that differ in few inputs.

    All members are evaluated together, which is faster for narrow layers.

    Args:
        layers: layers in integers.
        first: all inputs of the first row, ``float32[inputs]``.
        positions: positions of the inputs that differ between rows.
        inputs: values of these inputs, ``float32[positions, rows]``.
    """
    members, units, _ = layers[0].weights.shape
    rows, results = inputs.shape[1], layers[-1].weights.shape[1]
    constants = _integers(first, layers[0].up)
    constants[positions] = 0.0
    by_input = layers[0].next_weights.transpose(0, 2, 1).reshape(members * units, -1)
    weights = np.column_stack([by_input[:, positions], by_input @ constants])
    outputs = np.empty((members, results, rows), np.float32)
    step = max(JOINT_BLOCK // (members * units), 1)
    for start in range(0, rows, step):
        block = inputs[:, start : start + step]
        extended = np.ones((len(weights.T), block.shape[1]))
        extended[:-1] = _integers(block, layers[0].up)
        sums = (weights @ extended).reshape(members, units, -1)
        outputs[:, :, start : start + step] = _joint_outputs(layers, sums)
    return outputs


def _integers(inputs: NDArray[np.float32], up: float) -> Doubles:
    """Return inputs as integer multiples of their unit."""
    integers = np.clip(inputs.astype(np.float64), -MAX_INPUT, MAX_INPUT)
    integers *= up
    np.rint(integers, out=integers)
    return integers


def _joint_outputs(layers: Sequence[ExactLayer], values: Doubles) -> Doubles:
    """Return all members' outputs of the first layer's sums, (members, units, rows)."""
    for layer, following in pairwise(layers):
        values += layer.next_bias
        np.clip(values, 0.0, layer.max_input, out=values)
        np.rint(values, out=values)
        values = following.next_weights.transpose(0, 2, 1) @ values
    values += layers[-1].next_bias
    return values
