"""Inputs of learned models: physical quantities from sizes and device properties.

Every family yields a *base*, which is the roofline bound [Williams 2009] plus the time in which
any kernel starts and ends, and inputs that do not depend on the unit of time: logarithms of
sizes, FLOP and bytes, waves of tiles over the multiprocessors, and alignment. Models predict
``log(time / base)``. All arrays are float32, one value a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.learnable.hardware import Floats, Hardware

Sizes = Mapping[str, Floats]
"""Columns of a family's sizes by name, and ``op``, the index of the op in the family's ``ops``."""

TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (32, 128), (128, 32), (32, 32))
"""Rows and columns of the result that one thread block computes, for the kernels in training
(``ampere_sgemm_128x64``, ``volta_sgemm_32x128``, ... by name)."""

START = 2.7
"""Microseconds in which a kernel starts and ends: the time of kernels that move almost no bytes
in the V100 traces of DLRM of 2021. It is part of the base: a change requires new training."""


class Inputs(Struct, frozen=True):
    """The inputs of some kernels.

    Attributes:
        base: microseconds that no kernel of these sizes can undercut by much: bound plus start.
        columns: inputs with the same meaning on every device, each an array like ``base``, or one
            value for all rows.
        personal: inputs that distinguish the training cards, hidden for another device.
        extent: logarithm (base 2) of the FLOP, or of the bytes if nothing is computed. It is no
            input: it shows whether a kernel is larger than any in training.
        indicators: indicators of the training cards (``Hardware.indicators``), hidden like
            ``personal``.
    """

    base: Floats
    columns: list[Floats]
    personal: list[Floats]
    extent: Floats
    indicators: tuple[Floats, ...]

    @property
    def hidden(self) -> int:
        """Number of inputs, the last ones, that are hidden for an unseen device."""
        return len(self.personal) + len(self.indicators)

    def matrix(self) -> Floats:
        """Return the inputs as one array, (inputs, rows)."""
        columns = [*self.columns, *self.personal, *self.indicators]
        matrix = np.empty((len(columns), *self.base.shape), np.float32)
        for row, column in zip(matrix, columns, strict=True):
            row[:] = column
        return matrix

    def select(self, selection: NDArray[np.bool_] | NDArray[np.intp]) -> Inputs:
        """Return the rows of a mask or of indices."""

        def select_rows(columns: Sequence[Floats]) -> list[Floats]:
            return [np.broadcast_to(column, self.base.shape)[selection] for column in columns]

        (extent,) = select_rows([self.extent])
        columns, personal, indicators = (
            select_rows(c) for c in (self.columns, self.personal, self.indicators)
        )
        return Inputs(self.base[selection], columns, personal, extent, tuple(indicators))


def log2(values: NDArray[Any]) -> Floats:
    """Return logarithms (base 2) as float32."""
    return np.asarray(np.log2(values), np.float32)


def settling(values: NDArray[Any]) -> Floats:
    """Return a logarithm that grows with small values and saturates at zero for large ones.

    The limits of a small kernel (few waves, its start, a warm cache) fade with size; inputs of
    this form then stay within the range of training.
    """
    return log2(values / (1 + values))


def roofline(flops: Floats, nbytes: Floats, device: Hardware) -> tuple[Floats, list[Floats]]:
    """Return the base in microseconds, and inputs that describe its bound and its size."""
    compute = flops / (device.peak * np.float32(1e3))
    memory = nbytes / (device.bandwidth * np.float32(1e3))
    bound = np.maximum(compute, memory)
    small = [settling(bound / np.float32(START)), settling(nbytes / device.l2)]
    return bound + np.float32(START), [log2(compute / memory), *small]


def waves(rows: Floats, columns: Floats, batch: Floats, device: Hardware) -> list[Floats]:
    """Return the waves, the filling of the last one and the filling of tiles by tile shape."""
    inputs: list[Floats] = []
    area = rows * columns * batch
    for x, y in TILES:
        grid = np.ceil(rows / np.float32(x)) * np.ceil(columns / np.float32(y)) * batch
        rounds = grid / device.sms
        filling = log2(np.ceil(rounds) / rounds)
        inputs += [settling(rounds), filling, log2(grid * np.float32(x * y) / area)]
    return inputs


def multiples(values: Floats, *divisors: int) -> list[Floats]:
    """Return whether each value is a multiple of each divisor, as 0 or 1."""
    return [(values % np.float32(d) == 0).astype(np.float32) for d in divisors]
