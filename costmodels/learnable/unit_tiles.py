"""Matrix products on matrix units: tiles of the result on multiprocessors, in waves.

Tile shapes are known from names of kernels since Volta (``..._tilesize128x256x64_...``,
``..._128x64_...``). No measured time is used: every card gets the same arithmetic on its sheet.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from costmodels.learnable.hardware import Floats
from costmodels.learnable.inputs import log2, settling

TILES = (
    (32, 128), (128, 32), (64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (128, 256),
    (256, 128), (256, 256),
)  # fmt: skip
"""Rows and columns of the result that one block, or a pair of blocks, computes."""

PEAK_SHARES = (0.5, 0.5, 0.6, 0.8, 0.8, 1.0, 1.0, 1.0, 1.0, 1.0)
"""Share of the peak that each tile shape reaches: smaller tiles read more operand bytes from the
cache. The four levels are set by hand; the network corrects them."""

DEPTH = np.float32(64)
"""Depth of the slices in which a block reads its factors: 128 bytes of 16-bit values."""
ROUND, SPLIT = np.float32(0.7), np.float32(1)
"""Microseconds to start and drain a round of tiles, and to add up the parts of a sum."""
MIN_DEPTH, MAX_PARTS = np.float32(256), np.float32(64)
"""Minimum depth of a part of a split sum, and the maximum number of parts."""


class Tiling(Struct, frozen=True):
    """The fastest way to run each product, by the arithmetic of tiles; one value a row.

    Attributes:
        time: microseconds of the fastest tile shape, without the kernel's start and end.
        rival: time of the second fastest tile shape, at most eight times as long.
        share: number of rounds of the fastest one if all were full; ``rounds``: actual number.
        parts: number of parts into which the summed dimension is split.
        rows, columns: size of the tile.
        menu: for each tile shape, filling of the last round, rounds, padding, and the logarithm of
            the ratio of its time to the fastest one's.
    """

    time: Floats
    rival: Floats
    share: Floats
    rounds: Floats
    parts: Floats
    rows: Floats
    columns: Floats
    menu: list[Floats]


def tiling(batch: Floats, m: Floats, n: Floats, k: Floats, peak: Floats, sms: Floats) -> Tiling:
    """Return the tiling of products (batch, m, k) x (k, n) on units of a peak in GFLOP/s."""
    rate = peak * np.float32(1e3) / sms
    depth = np.ceil(k / DEPTH) * DEPTH
    max_parts = np.clip(k / MIN_DEPTH, 1, MAX_PARTS)
    table = np.full((7, len(m)), np.inf, np.float32)
    best, rival = table[0], table[1]
    menu: list[Floats] = []
    times: list[Floats] = []
    for (x, y), peak_share in zip(TILES, PEAK_SHARES, strict=True):
        grid = np.ceil(m / np.float32(x)) * np.ceil(n / np.float32(y)) * batch
        share = grid / sms
        rounds = np.ceil(share)
        parts = np.floor(np.clip(1 / share, 1, max_parts))
        compute = np.float32(2 * x * y / peak_share) * depth / rate
        time = rounds * (compute / parts + ROUND) + np.where(parts > 1, SPLIT, np.float32(0))
        times.append(np.asarray(time, np.float32))
        menu += [
            log2(rounds / share),
            settling(share),
            log2(grid * np.float32(x * y) / (m * n * batch)),
        ]
        better = time < best
        np.minimum(rival, np.where(better, best, time), out=rival)
        for row, column in zip((0, 2, 3, 4, 5, 6), (time, share, rounds, parts, x, y), strict=True):
            np.copyto(table[row], column, where=better, casting="same_kind")
    np.minimum(rival, 8 * best, out=rival)
    menu += [np.clip(log2(time / best), 0, 4) for time in times]
    _, _, share, rounds, parts, rows, columns = table
    return Tiling(best, rival, share, rounds, parts, rows, columns, menu)
