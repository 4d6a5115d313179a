"""Blocks in which fused attention runs: tiles of queries and keys, and rounds over multiprocessors.

A thread block holds a tile of queries of one head and walks over its keys, a tile at a time; the
last tiles are padded. Tiles are those that FlashAttention's launchers choose (``tile_size.h`` of
its third version for Hopper, ``flash_fwd_launch_template.h`` of its second), 256 queries and 128
keys on B200.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from costmodels.learnable.hardware import CORES, Floats, Hardware
from costmodels.learnable.inputs import Sizes

HEAD_SIZES = np.asarray([64, 96, 128, 192, 256], np.float32)
"""Head sizes that kernels are compiled for; other sizes are padded to the next one."""
QUERY_ROWS = {
    "sm_80": (128, 128, 128, 128, 64),
    "sm_90": (192, 192, 128, 128, 128),
    "sm_100": (256, 256, 256, 256, 256),
}
KEY_ROWS = {
    "sm_80": (128, 64, 64, 64, 64),
    "sm_90": (192, 144, 176, 112, 80),
    "sm_100": (128, 128, 128, 128, 128),
}
CAUSAL_KEY_ROWS = {**KEY_ROWS, "sm_90": (128, 144, 128, 112, 80)}
"""Rows of a tile of queries, of keys, and of keys under a causal mask, by head size."""
FULL_SHARE, MARGIN = np.float32(0.8), np.float32(1.1)
"""Share of busy multiprocessors from which keys are not split, and the factor by which a
multiprocessor may exceed its share of all tiles (``heuristics.h``,
``flash_prepare_scheduler.cu``)."""
MIN_FILLING, MAX_PARTS = np.float32(0.85), 24
"""Minimum filling of rounds, as a share of the best one, and the maximum number of parts."""
MAX_UNSPLIT_TILES = np.float32(4)
"""Number of key tiles up to which keys are not split."""


class Blocks(Struct, frozen=True):
    """The schedule of attention passes on a card; one value a row.

    Attributes:
        flops: FLOP of one tile of queries and keys, with padded heads.
        rounds: rounds of blocks over the multiprocessors; ``share``: if all were full.
        steps: mean number of key tiles that a block iterates over.
        parts: number of parts into which the keys are split.
        padding: ratio of computed to needed scores, including padded heads.
    """

    flops: Floats
    rounds: Floats
    share: Floats
    steps: Floats
    parts: Floats
    padding: Floats


def attention_blocks(
    sizes: Sizes, causal: np.ndarray, split: np.ndarray, device: Hardware
) -> Blocks:
    """Return the schedule of passes over ``batch``, ``heads``, ``dim`` and ``seq``.

    ``causal`` marks passes without later keys, ``split`` passes that may split their keys
    (FlashAttention 3 over sequences of several lengths, on Hopper).
    """
    seq, core = sizes["seq"], np.broadcast_to(device.core, sizes["seq"].shape)
    size_index = np.minimum(np.searchsorted(HEAD_SIZES, sizes["dim"]), len(HEAD_SIZES) - 1)
    dim = np.maximum(HEAD_SIZES[size_index], sizes["dim"])
    rows, keys = _tiles(size_index, causal, core)
    packed = (core <= CORES["sm_90"]) | (seq == 1)
    group = np.where(packed, sizes["heads"] / sizes["kv_heads"], np.float32(1))
    heads, query_tiles = sizes["heads"] / group, np.ceil(seq * group / rows)
    key_tiles, unit = np.ceil(seq / keys), np.float32(1)
    parts = np.ones_like(seq)
    splittable = np.flatnonzero(split & (core == CORES["sm_90"]))
    if splittable.size:
        columns = [
            sizes["batch"],
            heads,
            query_tiles,
            key_tiles,
            np.broadcast_to(device.sms, seq.shape),
        ]
        batch, split_heads, split_query_tiles, split_key_tiles, sms = (
            np.asarray(c[splittable], np.float32) for c in columns
        )
        parts[splittable] = _parts(batch, split_heads, split_query_tiles, split_key_tiles, sms)
    visible_tiles = np.minimum((key_tiles + np.maximum(rows / (group * keys), unit)) / 2, key_tiles)
    steps = np.where(causal, visible_tiles, np.ceil(key_tiles / parts))
    share = sizes["batch"] * heads * query_tiles * parts / device.sms
    padding = query_tiles * rows * key_tiles * keys * dim / (seq * seq * group * sizes["dim"])
    return Blocks(4 * rows * keys * dim, np.ceil(share), share, steps, parts, padding)


def _tiles(size_index: np.ndarray, causal: np.ndarray, core: np.ndarray) -> tuple[Floats, Floats]:
    """Return the rows of a tile of queries and of a tile of keys."""
    kind = np.where(core == CORES["sm_90"], 1, np.where(core == CORES["sm_100"], 2, 0))
    tables = [
        np.asarray(list(t.values()), np.float32) for t in (QUERY_ROWS, KEY_ROWS, CAUSAL_KEY_ROWS)
    ]
    rows, full, half = (table[kind, size_index] for table in tables)
    return rows, np.where(causal, half, full)


def _parts(
    batch: Floats, heads: Floats, query_tiles: Floats, key_tiles: Floats, sms: Floats
) -> Floats:
    """Return the number of parts into which FlashAttention 3 splits keys.

    ``query_tiles`` and ``key_tiles`` are the tiles of a head's queries and keys.
    """
    max_parts = np.minimum(key_tiles, sms)
    share = heads * query_tiles / sms
    counts = np.arange(1, MAX_PARTS + 1, dtype=np.float32)[:, None]
    filling = counts * share
    filling = np.where(counts <= max_parts, filling / np.ceil(filling), 0)
    fewest = 1 + np.argmax(filling >= MIN_FILLING * filling.max(0), 0)
    limit = np.where((share >= FULL_SHARE) | (key_tiles <= MAX_UNSPLIT_TILES), 1, fewest)
    tiles_per_part = np.ceil(batch * heads * query_tiles * key_tiles * MARGIN / sms)
    return np.asarray(
        np.maximum(np.minimum(np.ceil(key_tiles / tiles_per_part), limit), 1), np.float32
    )
