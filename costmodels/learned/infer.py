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
"""Number of rows of a chunk, chosen so that intermediate results remain in cache."""
SLACK = 0.05
"""Octaves beyond the range of training that do not count as outside."""
MAX_BEYOND = np.float32(64)
"""Maximum distance from the range of training, in octaves; used for an op without training rows."""
LOG_SCALE = 3.5
"""Offset of the network's second output from the logarithm of the scale of errors."""


class Estimates(Struct, frozen=True):
    """Predictions of many kernels; times in microseconds, one value a row.

    Attributes:
        time: time of the kernel, without the host's launch.
        spread: half a 90 % interval around it.
        outside: whether the sizes or the device are outside the range of training; the
            prediction then grows with the roofline bound.
        width: half the 90 % interval of the logarithm (base e) of the time.
        beyond: distance of the furthest input from the range of training, in octaves.
        floor: logarithm (base e) of the ratio of the shortest measurable time to the typical floor
            of the op.
    """

    time: Floats
    spread: Floats
    outside: NDArray[np.bool_]
    width: Floats
    beyond: Floats
    floor: Floats


def estimate(weights: Weights, sizes: Sizes, device: Hardware) -> Estimates:
    """Return the times of a family's kernels on one device, or on a device for each row.

    ``sizes`` has the columns ``weights.family.sizes`` and ``op``.
    """
    layers = exact_layers(weights.layers)
    rows = len(sizes["op"])
    parts = []
    for start in range(0, max(rows, 1), CHUNK):
        rows_of_chunk = slice(start, start + CHUNK)
        chunk = {name: column[rows_of_chunk] for name, column in sizes.items()}
        chunk_device = (
            device if len(device.peak) == 1 else device.rows(np.arange(rows)[rows_of_chunk])
        )
        parts.append(_estimate(weights, layers, chunk, chunk_device))
    columns = ([getattr(part, name) for part in parts] for name in Estimates.__struct_fields__)
    return Estimates(*(np.concatenate(column) for column in columns))


def _estimate(
    weights: Weights, layers: Sequence[ExactLayer], sizes: Sizes, device: Hardware
) -> Estimates:
    inputs, op = weights.family.inputs(sizes, device), sizes["op"].astype(np.intp)
    matrix = inputs.matrix()
    # Inputs are clipped to the training range, outside of which a ReLU network extrapolates freely.
    # Larger kernels scale with the roofline bound (``inputs.base``), and the distance in octaves
    # widens the interval.
    clipped = np.clip(matrix, weights.low[:, None], weights.high[:, None])
    matrix -= clipped
    indicators_start = -len(inputs.indicators)
    beyond = np.abs(matrix[:indicators_start], out=matrix[:indicators_start]).max(0)
    min_extent, max_extent = weights.extent[:, op]
    beyond = np.maximum(beyond, np.maximum(min_extent - inputs.extent, inputs.extent - max_extent))
    beyond = np.minimum(beyond, MAX_BEYOND)
    card = device.card
    unseen = np.broadcast_to(card == len(device.indicators), beyond.shape)
    if unseen.any():
        # An unseen card gets the mean in the inputs that identify a card: the network then predicts
        # from its datasheet alone.
        hidden = slice(-inputs.hidden, None)
        clipped[hidden, unseen] = weights.mean[hidden, None]
    clipped -= weights.mean[:, None]
    clipped /= weights.scale[:, None]
    ratio, scale, floor = combine(exact_forward(layers, clipped))
    stretch = np.asarray(weights.stretches or [weights.stretch] * (op.max() + 1), np.float32)[op]
    if weights.cards:
        stretch *= np.asarray(weights.cards, np.float32)[op, card]
    width = np.hypot(scale * stretch, unseen * np.float32(weights.unseen))
    octave_widths = np.asarray(weights.octaves, np.float32)[op, card] if weights.octaves else None
    width += beyond * (np.float32(weights.octave) if octave_widths is None else octave_widths)
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
    deviations = outputs[:, 0] - mean[0]
    spread = np.sqrt(_sum(deviations * deviations) / np.float32(members))
    member_scale = np.exp(np.clip(mean[1] - np.float32(LOG_SCALE), -7, 1))
    # Deep ensembles (Lakshminarayanan et al., 2017): the noise estimated by each member, and the
    # disagreement of members, are independent.
    return mean[0], np.hypot(member_scale, spread), mean[2]


def _sum(values: Floats) -> Floats:
    """Return the sum over the first axis, in sequence: numpy's order depends on shapes."""
    total: Floats = values[0]
    for value in values[1:]:
        total = total + value
    return total
