"""Inputs of the learned models: physical quantities from sizes and device properties.

Every family yields a *base*, which is the roofline bound [Williams 2009] plus the time in which
any kernel starts and ends, and inputs that do not depend on the unit of time: logarithms of
sizes, FLOP and bytes, waves of tiles over the multiprocessors, and alignment. Models predict
``log(time / base)``. All arrays are float32, one value a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.learned.convolving import algorithms, convolution
from costmodels.learned.hardware import Floats, Hardware
from costmodels.learned.tiling import tiling

Sizes = Mapping[str, Floats]
"""Columns of sizes by name; element-wise families also have ``op``, the index of the op."""

TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (32, 128), (128, 32), (32, 32))
"""Rows and columns of the result that one thread block computes, of the kernels seen in training
(``ampere_sgemm_128x64``, ``volta_sgemm_32x128``, ... by name)."""

START = 2.7
"""Microseconds in which a kernel starts and ends: what kernels that move next to nothing take in
the V100 traces of DLRM of 2021. Part of the base, so a change asks for new training."""

LONG_SIDE = np.float32(1024)
"""Length of a product's side from which it hardly matters how much longer it is."""

BLOCK = 512
"""Elements a thread block handles in torch's vectorised kernels: 128 threads of 4."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a model sees of some kernels.

    Attributes:
        base: microseconds no kernel of these sizes can undercut by much: bound plus start.
        columns: inputs that mean the same on every device, each an array like ``base``, or one
            value for all rows.
        personal: inputs that tell the devices of training apart; unknown for another device.
        extent: logarithm (base 2) of the FLOP, or of the bytes where nothing is computed: no
            input, but what says whether a kernel is larger than any in training.
    """

    base: Floats
    columns: list[Floats]
    personal: list[Floats]
    extent: Floats

    def matrix(self) -> Floats:
        """Return the inputs as one array, (inputs, rows)."""
        columns = [*self.columns, *self.personal]
        found = np.empty((len(columns), *self.base.shape), np.float32)
        for row, column in zip(found, columns, strict=True):
            row[:] = column
        return found

    def where(self, keep: NDArray[np.bool_]) -> Inputs:
        """Return the rows for which ``keep`` holds."""

        def rows(columns: list[Floats]) -> list[Floats]:
            return [np.broadcast_to(c, self.base.shape)[keep] for c in columns]

        extent = np.broadcast_to(self.extent, self.base.shape)[keep]
        return Inputs(self.base[keep], rows(self.columns), rows(self.personal), extent)


@dataclass(frozen=True, slots=True)
class Family:
    """A kernel family that can be learned.

    Attributes:
        name: as in ``costmodels.families``.
        table: name of the file of measurements.
        ops: measured ops, in the order of ``Sizes["op"]``.
        sizes: columns of sizes.
        inputs: from sizes and device to model inputs.
    """

    name: str
    table: str
    ops: tuple[str, ...]
    sizes: tuple[str, ...]
    inputs: Callable[[Sizes, Hardware], Inputs]


def _log(values: NDArray[Any]) -> Floats:
    return np.asarray(np.log2(values), np.float32)


def _settling(values: NDArray[Any]) -> Floats:
    """Return a logarithm that grows with small values and settles at zero for large ones.

    What limits a small kernel (few waves, its start, a warm cache) fades with size; inputs of this
    form do not leave the range of training with it.
    """
    return _log(values / (1 + values))


def _base(flops: Floats, nbytes: Floats, device: Hardware) -> tuple[Floats, list[Floats]]:
    """Return the base in microseconds, and inputs that say what bounds it, and how large it is."""
    compute = flops / (device.peak * np.float32(1e3))
    memory = nbytes / (device.bandwidth * np.float32(1e3))
    bound = np.maximum(compute, memory)
    small = [_settling(bound / np.float32(START)), _settling(nbytes / device.l2)]
    return bound + np.float32(START), [_log(compute / memory), *small]


def _waves(rows: Floats, columns: Floats, batch: Floats, device: Hardware) -> list[Floats]:
    """Return for each tile shape: waves, how full the last one is, and how full tiles are."""
    found: list[Floats] = []
    area = rows * columns * batch
    for x, y in TILES:
        grid = np.ceil(rows / np.float32(x)) * np.ceil(columns / np.float32(y)) * batch
        waves = grid / device.sms
        found += [
            _settling(waves),
            _log(np.ceil(waves) / waves),
            _log(grid * np.float32(x * y) / area),
        ]
    return found


def _multiples(values: Floats, *divisors: int) -> list[Floats]:
    """Return whether each value is a multiple of each divisor, as 0 or 1."""
    return [(values % np.float32(d) == 0).astype(np.float32) for d in divisors]


def gemm(sizes: Sizes, device: Hardware) -> Inputs:
    """Return inputs of float32 products (batch, m, k) x (k, n); op 0 is ``linear``, 1 ``bmm``.

    The base is that of tiles on multiprocessors. What tells tile shapes and sides apart is
    personal: on a card never measured the library may choose otherwise.
    """
    batch, m, n, k = (sizes[name] for name in ("batch", "m", "n", "k"))
    flops = 2 * batch * m * n * k
    single = 1 - sizes["op"]
    weights = np.where(single > 0, np.float32(1), batch)
    nbytes = 4 * (batch * m * k + weights * k * n + batch * m * n + single * n)
    memory = nbytes / (device.bandwidth * np.float32(1e3))
    tiles = tiling(batch, m, n, k, sizes["op"].astype(np.intp), device)
    base = np.maximum(tiles.time, memory) + np.float32(START)
    columns = [sizes["op"], *_bounds(tiles.time, memory, base, nbytes, device)]
    columns += [_log(tiles.rounds / tiles.share), _settling(tiles.rounds), _log(tiles.padded)]
    columns += [_log(tiles.rival / tiles.time), tiles.cache, _settling(k / 32)]
    personal = [_settling(k / LONG_SIDE), *_waves(m, n, batch, device)]
    for side in (m, n, k):
        personal += _multiples(side, 2, 4)
    personal += [_settling(side / LONG_SIDE) for side in (batch, m, n)]
    personal += [_log(tiles.columns), _log(tiles.rows), device.dual, *device.known]
    return Inputs(base, columns, personal, _log(flops))


def _bounds(
    compute: Floats, memory: Floats, base: Floats, nbytes: Floats, device: Hardware
) -> list[Floats]:
    """Return which of two bounds holds, up to 16 times the other, and how large the kernel is."""
    which = np.clip(_log(compute / memory), -4, 4)
    return [which, _settling(base / np.float32(START)), _settling(nbytes / device.l2)]


MANY_ROWS = np.float32(8192)
"""Rows beyond which layer norm takes about 15 % less time a row on A100 and P100, on V100 not: seen
in the training rows, whose cause nobody told."""

TRAFFIC = {
    "add": 3, "mul": 3, "div": 3, "pow": 3, "addu": 2, "mulu": 2, "powu": 2, "relu": 2, "tanh": 2
}  # fmt: skip
"""Tensors that an element-wise op reads and writes; the suffix ``u`` is a scalar operand."""


def elementwise(sizes: Sizes, device: Hardware) -> Inputs:
    """Return inputs of float32 element-wise ops over contiguous tensors."""
    elements = sizes["rows"] * sizes["cols"]
    op = sizes["op"].astype(np.intp)
    tensors = np.asarray(list(TRAFFIC.values()), np.float32)[op]
    nbytes = 4 * elements * tensors
    base, common = _base(elements, nbytes, device)
    waves = np.ceil(elements / np.float32(BLOCK)) / device.sms
    columns = [tensors, *common[1:], _settling(waves), _settling(waves / 64)]
    columns += [
        _log(np.ceil(waves / 8) * 8 / waves),
        *_multiples(sizes["rows"] % 4 * sizes["cols"], 4),
    ]
    flags = [(op == i).astype(np.float32) for i in range(len(TRAFFIC))]
    return Inputs(base, [*columns, *flags, device.dual], list(device.known), _log(nbytes))


def rowwise(sizes: Sizes, device: Hardware) -> Inputs:
    """Return inputs of softmax or layer norm in float32 over the last axis."""
    rows, cols = sizes["rows"], sizes["cols"]
    nbytes = 8 * rows * cols
    base, common = _base(rows * cols, nbytes, device)
    padded = np.exp2(np.ceil(_log(cols)))
    columns = [_log(cols), *common[1:]]
    columns += [_log(padded / cols), _log(padded), (cols > 1024).astype(np.float32)]
    for together in (1, 4, 8):
        waves = rows / (device.sms * np.float32(together))
        columns += [_settling(waves), _log(np.ceil(waves) / waves)]
    for threads in (128, 512, 1024):
        columns += [_log(np.ceil(cols / np.float32(threads)) * np.float32(threads) / cols)]
    columns += _multiples(cols, 2, 4)
    personal = [_log(rows), (rows > MANY_ROWS).astype(np.float32), *device.known]
    return Inputs(base, [*columns, device.dual], personal, _log(nbytes))


def conv2d(sizes: Sizes, device: Hardware) -> Inputs:
    """Return inputs of dense float32 2-D convolutions over square images."""
    shape = convolution(sizes)
    inner, outer, side, out = shape.inner, shape.outer, shape.side, shape.out
    flops = 2 * shape.pixels * outer * shape.depth
    base, common = _base(flops, shape.outside + 4 * shape.depth * outer, device)
    columns = [_log(inner), _log(side), _log(out), _log(shape.depth), *common]
    columns += _choices(algorithms(shape, device), base)
    for step in (2, 4, 6, 8, 16):
        columns += [_log(np.ceil(out / step) * step / out), *_multiples(out, step)]
    for channels in (inner, outer):
        columns += [*_multiples(channels, 2, 4), _log(np.ceil(channels / 8) * 8 / channels)]
    columns += [_log(np.ceil(outer / 32) * 32 / outer)]
    columns += _waves(shape.pixels, outer, np.ones_like(outer), device)
    personal = [_log(shape.batch), _log(outer), _log(shape.pixels), *device.known]
    return Inputs(base, [*columns, device.dual], personal, _log(flops))


def _choices(times: list[Floats], base: Floats) -> list[Floats]:
    """Return how algorithms compare with the base, the best with the next, and each with others."""
    ordered = np.sort(times, 0)
    found = [np.clip(_log(time / base), -6, 6) for time in (*times, ordered[0])]
    found += [np.minimum(_log(ordered[1] / ordered[0]), 2)]
    implicit, fused, *_, apart = times
    return [*found, _log(fused / apart), _log(implicit / apart), _log(implicit / fused)]


_CONV = ("batch", "in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding")

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("gemm", "gemm", ("linear", "bmm"), ("batch", "m", "n", "k"), gemm),
        Family("elementwise", "elementwise", tuple(TRAFFIC), ("rows", "cols"), elementwise),
        Family("softmax", "softmax", ("softmax",), ("rows", "cols"), rowwise),
        Family("layer_norm", "layer_norm", ("ln",), ("rows", "cols"), rowwise),
        Family("conv2d", "conv2d", ("conv",), _CONV, conv2d),
    )
}
"""Families that ``irgraph train`` can train."""
