"""Times of each of cuDNN's algorithms for a convolution, by the arithmetic of tiles.

cuDNN chooses the algorithm; the times of all of them are inputs of the learned model. Forms and
tile sizes follow names of kernels: ``scudnn_winograd_128x128_..._tile148t`` computes 1 x 4 x 8
tiles of 2 x 2 results for 32 channels; ``scudnn_128x64_relu`` is an implicit product; separate
``sgemm`` kernels are Winograd's with separate transforms [Lavin and Gray 2016], on 4 x 4 results.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from costmodels.learnable.hardware import Floats, Hardware

FUSED_TILES = ((1, 4, 8), (2, 4, 4), (2, 2, 8))
"""Images, rows and columns of Winograd tiles that a block of a fused kernel computes."""
FUSED_CHANNELS, FUSED_START = 32, np.float32(5)
"""Output channels of such a block, and microseconds in which it starts and ends."""
IMPLICIT_TILES = ((128, 128), (64, 128), (128, 64), (128, 32))
"""Output channels and pixels of a block of implicit products."""
SEPARATE_TILES = ((64, 64), (32, 128))
"""Tiles of pixels and output channels of a block of the products between separate transforms."""
ROUND, LAUNCHES = np.float32(1), np.float32(10)
"""Microseconds of a round of a product, and of the kernels other than the product."""
SLICE = 8
"""Depth of the slices in which a block reads its factors."""


class Convolution(Struct, frozen=True):
    """A 3 x 3-like convolution over square images, one value a row."""

    batch: Floats
    inner: Floats
    outer: Floats
    side: Floats
    out: Floats
    window: Floats

    @property
    def pixels(self) -> Floats:
        """Results of one channel."""
        return np.asarray(self.batch * self.out * self.out, np.float32)

    @property
    def depth(self) -> Floats:
        """Multiply-adds for one result."""
        return np.asarray(self.inner * self.window * self.window, np.float32)

    @property
    def outside(self) -> Floats:
        """Bytes of images and results."""
        images = self.batch * self.inner * self.side * self.side
        return np.asarray(4 * (images + self.pixels * self.outer), np.float32)


def convolution(sizes: Mapping[str, Floats]) -> Convolution:
    """Return the convolutions of columns of sizes."""
    side, window, pad = (sizes[name] for name in ("input_size", "kernel_size", "padding"))
    out = np.floor((side + 2 * pad - window) / sizes["stride"]) + 1
    batch, inner, outer = (sizes[name] for name in ("batch", "in_channels", "out_channels"))
    return Convolution(batch, inner, outer, side, out, window)


def fastest_algorithm_time(sizes: Mapping[str, Floats], device: Hardware) -> Floats:
    """Return microseconds of the fastest algorithm; no kernel beats it by much."""
    return np.asarray(np.min(algorithm_times(convolution(sizes), device), 0), np.float32)


def algorithm_times(shape: Convolution, device: Hardware) -> list[Floats]:
    """Return microseconds of an implicit product, fused Winograd by tiles, separate Winograd."""
    rate = device.peak * np.float32(1e3) / device.sms
    sms = device.sms
    implicit = [
        _product(shape.outer, shape.pixels, shape.depth, 1, tile, rate, sms)
        for tile in IMPLICIT_TILES
    ]
    fused = [_fused_winograd(shape, tiles, rate, sms) for tiles in FUSED_TILES]
    return [np.min(implicit, 0), *fused, _separate_winograd(shape, device, rate)]


def _blocks(values: Floats, size: int) -> Floats:
    return np.asarray(np.ceil(values / np.float32(size)), np.float32)


def _product(
    columns: Floats,
    rows: Floats,
    depth: Floats,
    times: int,
    tile: tuple[int, int],
    rate: Floats,
    sms: Floats,
) -> Floats:
    x, y = tile
    rounds = np.ceil(_blocks(columns, x) * _blocks(rows, y) * times / sms)
    flop = np.float32(2 * x * y) * _blocks(depth, SLICE) * SLICE
    return np.asarray(rounds * (flop / rate + ROUND), np.float32)


def _fused_winograd(
    shape: Convolution, tiles: tuple[int, int, int], rate: Floats, sms: Floats
) -> Floats:
    """Return the time of a fused Winograd kernel; two blocks run concurrently."""
    images, rows, columns = tiles
    blocks = _blocks(shape.batch, images) * _blocks(shape.out, 2 * rows)
    blocks = blocks * _blocks(shape.out, 2 * columns) * _blocks(shape.outer, FUSED_CHANNELS)
    area = images * rows * columns * FUSED_CHANNELS
    flop = np.float32(2 * 16 * area) * _blocks(shape.inner, SLICE) * SLICE
    rounds = np.ceil(blocks / (2 * sms)) * 2
    return np.asarray(rounds * (flop / rate + FUSED_START), np.float32)


def _separate_winograd(shape: Convolution, device: Hardware, rate: Floats) -> Floats:
    """Return the time of 36 products and of writing and reading the transformed values."""
    tiles = shape.batch * _blocks(shape.out, 4) ** 2
    value_count = tiles * (shape.inner + shape.outer) + shape.inner * shape.outer
    nbytes = shape.outside + np.float32(8 * 36) * value_count
    products = [
        _product(tiles, shape.outer, shape.inner, 36, tile, rate, device.sms)
        for tile in SEPARATE_TILES
    ]
    memory = nbytes / (device.bandwidth * np.float32(1e3))
    return np.asarray(np.min(products, 0) + memory + LAUNCHES, np.float32)
