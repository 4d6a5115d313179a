"""Predictions of trained models with numpy alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.learnable.hardware import Floats, Hardware
from costmodels.learnable.inputs import Sizes
from costmodels.learned.batch_invariant import ExactLayer, exact_forward, exact_layers
from costmodels.learned.files import Layers
from costmodels.learned.weights import Weights

CHUNK = 2048
"""Rows that are processed together, so that they and intermediate results stay in cache."""
SLACK = 0.05
"""Octaves beyond the range of training that do not count as outside."""
FARTHEST = np.float32(64)
"""Octaves beyond the range of training of an op that training has not seen at all."""
LOG_SCALE = 3.5
"""The network's second output is the logarithm of the scale of errors plus this."""


class Estimates(Struct, frozen=True):
    """Predictions of many kernels; times in microseconds, one value a row.

    Attributes:
        time: of the kernel, without the host's launch.
        spread: half a 90 % interval around it.
        outside: whether the sizes or the device lie outside what training has seen; the
            prediction then grows with the roofline bound.
        width: half the 90 % interval of the logarithm (base e) of the time.
        beyond: octaves by which the furthest input lies outside the range of training.
        floor: logarithm (base e) of the shortest measurable time over the usual floor of the op.
    """

    time: Floats
    spread: Floats
    outside: NDArray[np.bool_]
    width: Floats
    beyond: Floats
    floor: Floats


def estimate(weights: Weights, sizes: Sizes, device: Hardware) -> Estimates:
    """Return the times of a family's kernels on one device, or on a device a row.

    ``sizes`` holds the columns that ``weights.family.sizes`` names, and ``op``.
    """
    layers = exact_layers(weights.layers)
    rows = len(sizes["op"])
    parts = []
    for start in range(0, max(rows, 1), CHUNK):
        chosen = slice(start, start + CHUNK)
        some = {name: column[chosen] for name, column in sizes.items()}
        here = device if len(device.peak) == 1 else device.rows(np.arange(rows)[chosen])
        parts.append(_estimate(weights, layers, some, here))
    columns = ([getattr(part, name) for part in parts] for name in Estimates.__struct_fields__)
    return Estimates(*(np.concatenate(column) for column in columns))


def _estimate(
    weights: Weights, layers: Sequence[ExactLayer], sizes: Sizes, device: Hardware
) -> Estimates:
    inputs, op = weights.family.inputs(sizes, device), sizes["op"].astype(np.intp)
    matrix = inputs.matrix()
    # The network never sees an input outside of its training range, where a ReLU net extrapolates
    # freely. What lies beyond scales with the roofline bound (``inputs.base``), and widens the
    # interval by the distance in octaves.
    seen = np.clip(matrix, weights.low[:, None], weights.high[:, None])
    matrix -= seen
    named = -len(inputs.indicators)
    beyond = np.abs(matrix[:named], out=matrix[:named]).max(0)
    least, most = weights.extent[:, op]
    beyond = np.maximum(beyond, np.maximum(least - inputs.extent, inputs.extent - most))
    beyond = np.minimum(beyond, FARTHEST)
    card = device.card
    unseen = np.broadcast_to(card == len(device.indicators), beyond.shape)
    if unseen.any():
        # A card that training has not seen shows its mean in the inputs that name it: the network
        # then knows it by its datasheet alone.
        hidden = slice(-inputs.hidden, None)
        seen[hidden, unseen] = weights.mean[hidden, None]
    seen -= weights.mean[:, None]
    seen /= weights.scale[:, None]
    ratio, scale, floor = combine(exact_forward(layers, seen))
    stretch = np.asarray(weights.stretches or [weights.stretch] * (op.max() + 1), np.float32)[op]
    if weights.cards:
        stretch *= np.asarray(weights.cards, np.float32)[op, card]
    width = np.hypot(scale * stretch, unseen * np.float32(weights.unseen))
    further = np.asarray(weights.octaves, np.float32)[op, card] if weights.octaves else None
    width += beyond * (np.float32(weights.octave) if further is None else further)
    time = inputs.base * np.exp(ratio)
    outside = unseen | (beyond > SLACK)
    return Estimates(time, time * np.sinh(width), outside, width, beyond, floor)


def forward(layers: Layers, inputs: Floats) -> Floats:
    """Return the outputs of every member, (members, outputs, rows), of inputs (inputs, rows).

    In single precision, for training: the last digits depend on the number of rows.
    """
    members = layers[0][0].shape[0]
    outputs = np.empty((members, layers[-1][0].shape[1], inputs.shape[1]), np.float32)
    for member in range(members):
        values = inputs
        for weights, bias in layers[:-1]:
            values = weights[member] @ values
            values += bias[member][:, None]
            np.maximum(values, 0, out=values)
        weights, bias = layers[-1]
        np.matmul(weights[member], values, out=outputs[member])
        outputs[member] += bias[member][:, None]
    return outputs


def combine(outputs: Floats) -> tuple[Floats, Floats, Floats]:
    """Return log ratio, its scale, and log floor over the members; rows in the last axis.

    The scale combines the members' own scales and their disagreement.
    """
    members = len(outputs)
    mean = _sum(outputs) / np.float32(members)
    away = outputs[:, 0] - mean[0]
    spread = np.sqrt(_sum(away * away) / np.float32(members))
    own = np.exp(np.clip(mean[1] - np.float32(LOG_SCALE), -7, 1))
    # Deep ensembles (Lakshminarayanan et al., 2017): the noise that each member sees, and how far
    # members disagree, are independent.
    return mean[0], np.hypot(own, spread), mean[2]


def _sum(values: Floats) -> Floats:
    """Return the sum over the first axis, one after the other: numpy's order depends on shapes."""
    total: Floats = values[0]
    for value in values[1:]:
        total = total + value
    return total
