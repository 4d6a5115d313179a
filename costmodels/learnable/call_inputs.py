"""Inputs of the networks that correct a family's formulas: sizes, alignments, waves and flags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.learnable.hardware import Floats

Doubles = NDArray[np.float64]

MIN_TIME = 1e-3
"""Minimum microseconds of a formula whose logarithm is an input."""

MAX_LEVEL = 6
"""Number of doublings up to which the alignment of a size counts: 64 elements."""

TILES = ((128, 256), (128, 128), (64, 64))
"""Rows and columns of the result that a block of a matrix product computes."""

PRODUCT_INPUTS = 3 * len(TILES)
"""Number of inputs that describe a matrix product as blocks."""


class InputLayout(Struct, frozen=True):
    """Layout of the inputs of one network.

    Attributes:
        sizes: maximum number of sizes of a form; shorter forms are padded with ones.
        words: words of forms in the order of their indicators.
    """

    sizes: int
    words: tuple[str, ...]

    @property
    def ranged(self) -> int:
        """Number of inputs, the first ones, whose training range matters: time and sizes."""
        return 1 + self.sizes

    @property
    def count(self) -> int:
        """Number of inputs."""
        return 1 + 3 * self.sizes + PRODUCT_INPUTS + len(self.words)

    def matrix(self, words: Sequence[str], numbers: Doubles, size_count: int, sms: int) -> Floats:
        """Return the inputs (inputs, rows) of calls of one form.

        Args:
            words: words of the form.
            numbers: the formula's microseconds, the sizes, and the four numbers of the product if
                the form has one, ``float64[numbers, rows]``.
            size_count: number of sizes.
            sms: multiprocessors of the device.
        """
        rows = numbers.shape[1]
        matrix = np.zeros((self.count, rows), np.float32)
        time, sizes = numbers[0], numbers[1 : 1 + size_count]
        matrix[0] = np.log2(np.maximum(time, MIN_TIME))
        matrix[1 : 1 + size_count] = np.log2(np.maximum(sizes, 1.0))
        matrix[self.ranged : self.ranged + size_count] = _levels(sizes)
        start = self.ranged + self.sizes
        matrix[start : start + size_count] = 1.0 / np.maximum(sizes, 1.0)
        start += self.sizes
        product = numbers[1 + size_count :]
        if len(product):
            matrix[start : start + PRODUCT_INPUTS] = _blocks(product, sms)
        indicators = [float(word in words) for word in self.words]
        matrix[start + PRODUCT_INPUTS :] = np.asarray(indicators, np.float32)[:, None]
        return matrix


def _levels(sizes: Doubles) -> Doubles:
    """Return for each size the power of two that divides it, as a share of ``MAX_LEVEL``."""
    integers = sizes.astype(np.int64)
    divisors = np.where(sizes == integers, integers & -integers, 1)
    levels: Doubles = np.log2(np.clip(divisors, 1, 2**MAX_LEVEL)) * (2.0 / MAX_LEVEL)
    return levels


def _blocks(product: Doubles, sms: int) -> Doubles:
    """Return how full the last wave is, the number of waves, and the padding, by tile."""
    batch, rows, columns, _ = product
    inputs = []
    for x, y in TILES:
        grid = batch * np.ceil(rows / x) * np.ceil(columns / y)
        waves = np.maximum(grid, 1.0) / sms
        padding = np.maximum(grid, 1.0) * (x * y) / np.maximum(batch * rows * columns, 1.0)
        inputs += [np.log2(np.ceil(waves) / waves), np.log2(waves / (1 + waves)), np.log2(padding)]
    return np.asarray(inputs)
