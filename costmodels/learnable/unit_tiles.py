"""Matrix products on matrix units: tiles of the result on multiprocessors, in waves.

Tile shapes are those that names of kernels show since Volta (``..._tilesize128x256x64_...``,
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
"""Rows and columns of the result that one block, or two in a pair, compute."""

SHARE = (0.5, 0.5, 0.6, 0.8, 0.8, 1.0, 1.0, 1.0, 1.0, 1.0)
"""What such a tile leaves of the peak: its operands' way from the cache grows as it gets smaller.
Four steps set by hand; the network corrects them."""

DEPTH = np.float32(64)
"""Depth of the slices in which a block reads its factors: 128 bytes of 16-bit values."""
ROUND, SPLIT = np.float32(0.7), np.float32(1)
"""Microseconds to start and drain a round of tiles, and to add up a split sum."""
LEAST_DEPTH, MOST_PARTS = np.float32(256), np.float32(64)
"""Least depth of a part of a split sum, and the largest number of parts."""


class Tiling(Struct, frozen=True):
    """How products run, by the arithmetic of tiles; one value a row.

    Attributes:
        time: microseconds of the fastest tile shape, without the kernel's start and end.
        rival: the same of the second fastest, at most eight times as long.
        share: rounds of the fastest if all were full; ``rounds``: as they are.
        parts: into how many the summed dimension is split.
        rows, columns: of the tile.
        menu: of each tile shape: how full the last round is, rounds, padding, and the logarithm of
            its time over the fastest one's.
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
    """Return how products (batch, m, k) x (k, n) run on units of a peak in GFLOP/s."""
    rate = peak * np.float32(1e3) / sms
    depth = np.ceil(k / DEPTH) * DEPTH
    most = np.clip(k / LEAST_DEPTH, 1, MOST_PARTS)
    found = np.full((7, len(m)), np.inf, np.float32)
    best, rival = found[0], found[1]
    menu: list[Floats] = []
    times: list[Floats] = []
    for (x, y), part in zip(TILES, SHARE, strict=True):
        grid = np.ceil(m / np.float32(x)) * np.ceil(n / np.float32(y)) * batch
        share = grid / sms
        rounds = np.ceil(share)
        parts = np.floor(np.clip(1 / share, 1, most))
        compute = np.float32(2 * x * y / part) * depth / rate
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
            np.copyto(found[row], column, where=better, casting="same_kind")
    np.minimum(rival, 8 * best, out=rival)
    menu += [np.clip(log2(time / best), 0, 4) for time in times]
    _, _, share, rounds, parts, rows, columns = found
    return Tiling(best, rival, share, rounds, parts, rows, columns, menu)
