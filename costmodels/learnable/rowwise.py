"""Inputs of softmax and layer norm, which reduce each row of a matrix."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from costmodels.learnable.hardware import Hardware
from costmodels.learnable.inputs import Inputs, Sizes, log2, multiples, roofline, settling
from costmodels.learnable.settings import Architecture, Settings
from irgraph.ir.points.point_values import to_float

SIZES = ("rows", "cols")

SETTINGS = Settings(steps=3000, batch=256, decay=0.3, architecture=Architecture(64, 3, 8))

MANY_ROWS = np.float32(8192)
"""Number of rows beyond which layer norm takes about 15 % less time per row on A100 and P100 but
not on V100, observed in the training rows; the cause is unknown."""


def rowwise(sizes: Sizes, device: Hardware) -> Inputs:
    """Return inputs of softmax or layer norm in float32 over the last axis."""
    rows, cols = sizes["rows"], sizes["cols"]
    nbytes = 8 * rows * cols
    base, common = roofline(rows * cols, nbytes, device)
    padded = np.exp2(np.ceil(log2(cols)))
    columns = [log2(cols), *common[1:]]
    columns += [log2(padded / cols), log2(padded), (cols > 1024).astype(np.float32)]
    for rows_per_block in (1, 4, 8):
        waves = rows / (device.sms * np.float32(rows_per_block))
        columns += [settling(waves), log2(np.ceil(waves) / waves)]
    for threads in (128, 512, 1024):
        columns += [log2(np.ceil(cols / np.float32(threads)) * np.float32(threads) / cols)]
    columns += [*multiples(cols, 2, 4), device.dual]
    personal = [log2(rows), (rows > MANY_ROWS).astype(np.float32)]
    return Inputs(base, columns, personal, log2(nbytes), device.indicators)


def shape(arguments: Mapping[str, float | str]) -> dict[str, float]:
    """Return the sizes of a matrix from the arguments of a query."""
    return {name: to_float(arguments[name]) for name in SIZES}
