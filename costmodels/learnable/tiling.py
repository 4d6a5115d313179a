"""Matrix products as a library runs them: tiles of the result on multiprocessors, in waves.

The tile shapes of cuBLAS 12 for a generation of cards are known from names of kernels, the number
of warps of a block from launches in traces of V100 and A100. No measured time is used: every card
gets the same arithmetic on the figures of its sheet.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.learnable.hardware import GENERATIONS, Floats, Hardware

TILES = ((128, 128), (128, 64), (64, 64), (32, 128), (128, 32), (64, 32), (32, 32))
"""Columns and rows of the result that one thread block computes."""

WARPS = (8, 4, 2, 8, 8, 8, 4)
"""Warps of a block of each tile shape (traced launches of ``volta_sgemm`` and ``ampere_sgemm``)."""

_WIDE, _FLAT, _SMALL = ((128, 128), (128, 64)), ((32, 128), (128, 32)), ((64, 32), (32, 32))
SINGLE: Mapping[str, tuple[tuple[int, int], ...]] = {
    "pascal": (*_FLAT, (64, 64)),
    "volta": (*_WIDE, *_FLAT, *_SMALL),
    "turing": TILES,
    "ampere": (*_WIDE, *_FLAT, *_SMALL),
}
"""Tiles of ``linear`` (``maxwell_sgemm_32x128_tn``, ``volta_sgemm_128x64_tn``, ... by name)."""

BATCHED: Mapping[str, tuple[tuple[int, int], ...]] = {
    "pascal": ((128, 64),),
    "volta": ((64, 64), *_FLAT),
    "turing": ((64, 64), (128, 64), *_FLAT),
    "ampere": ((128, 128),),
}
"""Tiles of ``bmm`` (``ampere_sgemm_128x128_nn``, ... by name)."""

_MENU = np.asarray(
    [
        [[tile in kinds[name] for tile in TILES] for kinds in (SINGLE, BATCHED)]
        for name in GENERATIONS
    ]
)

STEP = np.float32(8)
"""Depth of the slices in which a block reads its factors: 32 bytes, one sector of the cache."""
EXPOSED = np.float32(0.5)
"""Share of a slice's transfer time from the second-level cache that arithmetic does not hide. This
is the only figure chosen by results: on training rows of V100, A100 and P100, all values from 0.4
to 0.6 perform equally."""
ROUND = np.float32(1)
"""Microseconds to start and drain a round of tiles: about two trips to memory."""
BUSY_WARPS = (4, 8, 8, 8)
"""Number of warps that occupy a multiprocessor: two for each of its schedulers, by generation
(pascal has two; NVIDIA, Tesla P100 and V100 architecture whitepapers)."""
MAX_PARTS, MIN_DEPTH = 16, 256
"""Maximum number of parts into which the summed dimension is split, and the minimum depth of a
part."""


class Tiling(Struct, frozen=True):
    """The fastest way to run each product, by the arithmetic of tiles; one value a row.

    Attributes:
        time: microseconds, without start, end, and the memory bound.
        rival: time of the second fastest tile shape, at most four times as long.
        rounds: rounds of the busiest multiprocessor.
        share: number of rounds if all were full.
        padded: ratio of computed elements to elements of the result.
        columns, rows: size of the tile.
        cache: ratio of transfer time from the cache to the time of arithmetic.
    """

    time: Floats
    rival: Floats
    rounds: Floats
    share: Floats
    padded: Floats
    columns: Floats
    rows: Floats
    cache: Floats


def tiling(
    batch: Floats, m: Floats, n: Floats, k: Floats, op: NDArray[np.intp], device: Hardware
) -> Tiling:
    """Return the tiling of products (batch, m, k) x (k, n).

    ``op`` is 0 for ``linear``, 1 for ``bmm``.
    """
    kind = device.generation.astype(np.intp)
    menu = _MENU[kind, op]
    busy = np.asarray(BUSY_WARPS, np.float32)[kind]
    depth = np.ceil(k / STEP) * STEP
    parts = np.clip(np.floor(k / np.float32(MIN_DEPTH)), 1, MAX_PARTS)
    splits = (op == 0) & (parts > 1)
    sectors = _sectors(k, kind)
    wide = np.where(op == 0, sectors, np.float32(1))
    flop = 2 * device.sms / (device.peak * np.float32(1e3))
    trip = EXPOSED * 4 * device.sms / (device.l2_bandwidth * np.float32(1e3))
    area = m * n * batch
    table = np.full((9, len(m)), np.inf, np.float32)
    best, rival = table[0], table[1]
    for number, ((x, y), warps) in enumerate(zip(TILES, WARPS, strict=True)):
        grid = np.ceil(n / np.float32(x)) * np.ceil(m / np.float32(y)) * batch
        share = grid / device.sms
        group = np.maximum(busy / np.float32(warps), 1)
        rounds = np.where(splits, np.maximum(share, 1 / parts), np.ceil(share / group) * group)
        cache = trip * (x * wide + y * sectors)
        compute = flop * np.float32(x * y)
        time = rounds * (depth * (compute + cache)) + np.maximum(rounds, 1) * ROUND
        time[~menu[:, number]] = np.inf
        better = time < best
        np.minimum(rival, np.where(better, best, time), out=rival)
        columns = (time, rounds, share, grid * np.float32(x * y) / area, x, y, cache / compute)
        for row, column in zip((0, 2, 3, 4, 5, 6, 7), columns, strict=True):
            np.copyto(table[row], column, where=better, casting="same_kind")
    np.minimum(rival, 4 * best, out=rival)
    return Tiling(*table[:8])


def _sectors(k: Floats, kind: NDArray[np.intp]) -> Floats:
    """Return the mean number of sectors of a slice of one row, read along the row.

    If a row does not start on a sector boundary, its slices span two sectors. Since volta the
    first-level cache retains the other half until the next slice needs it; pascal's (24 KiB) is
    too small for the rows of the blocks that share it, about 20 KiB each.
    """
    aligned = np.ones_like(k)
    for size in (2, 4, 8):
        aligned = np.where(k % np.float32(size) == 0, np.float32(size), aligned)
    return np.where(kind == 0, 2 - aligned / STEP, np.float32(1))
