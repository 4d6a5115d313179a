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

HEADS = np.asarray([64, 96, 128, 192, 256], np.float32)
"""Sizes of heads that kernels are compiled for; others are padded to the next."""
QUERIES = {
    "sm_80": (128, 128, 128, 128, 64),
    "sm_90": (192, 192, 128, 128, 128),
    "sm_100": (256, 256, 256, 256, 256),
}
KEYS = {
    "sm_80": (128, 64, 64, 64, 64),
    "sm_90": (192, 144, 176, 112, 80),
    "sm_100": (128, 128, 128, 128, 128),
}
CAUSAL_KEYS = {**KEYS, "sm_90": (128, 144, 128, 112, 80)}
"""Rows of a tile of queries, of keys, and of keys under a causal mask, by the size of heads."""
FULL, MARGIN = np.float32(0.8), np.float32(1.1)
"""Share of the multiprocessors from which keys are not split, and by how much more than its share
of all tiles a multiprocessor may get (``heuristics.h``, ``flash_prepare_scheduler.cu``)."""
WORTH, TRIED = np.float32(0.85), 24
"""Share of the best filling of rounds that the fewest parts must reach, and how many are tried."""
UNSPLIT = np.float32(4)
"""Tiles of keys that are never split."""


class Blocks(Struct, frozen=True):
    """How passes run; one value a row.

    Attributes:
        flops: of one tile of queries and keys, heads padded.
        rounds: of blocks over the multiprocessors; ``share``: if all were full.
        steps: tiles of keys that a block walks over, on average.
        parts: into how many the keys are split.
        padding: computed over needed scores, and heads.
    """

    flops: Floats
    rounds: Floats
    share: Floats
    steps: Floats
    parts: Floats
    padding: Floats


def blocks(sizes: Sizes, causal: np.ndarray, split: np.ndarray, device: Hardware) -> Blocks:
    """Return how passes over ``batch``, ``heads``, ``dim`` and ``seq`` run.

    ``causal`` says which see no later keys, ``split`` which may split their keys (FlashAttention 3
    over sequences of several lengths, on Hopper).
    """
    seq, core = sizes["seq"], np.broadcast_to(device.core, sizes["seq"].shape)
    place = np.minimum(np.searchsorted(HEADS, sizes["dim"]), len(HEADS) - 1)
    dim = np.maximum(HEADS[place], sizes["dim"])
    rows, keys = _tiles(place, causal, core)
    packed = (core <= CORES["sm_90"]) | (seq == 1)
    group = np.where(packed, sizes["heads"] / sizes["kv_heads"], np.float32(1))
    heads, across = sizes["heads"] / group, np.ceil(seq * group / rows)
    along, one = np.ceil(seq / keys), np.float32(1)
    parts = np.ones_like(seq)
    some = np.flatnonzero(split & (core == CORES["sm_90"]))
    if some.size:
        columns = [sizes["batch"], heads, across, along, np.broadcast_to(device.sms, seq.shape)]
        batch, each, down, over, sms = (np.asarray(c[some], np.float32) for c in columns)
        parts[some] = _parts(batch, each, down, over, sms)
    seen = np.minimum((along + np.maximum(rows / (group * keys), one)) / 2, along)
    steps = np.where(causal, seen, np.ceil(along / parts))
    share = sizes["batch"] * heads * across * parts / device.sms
    padding = across * rows * along * keys * dim / (seq * seq * group * sizes["dim"])
    return Blocks(4 * rows * keys * dim, np.ceil(share), share, steps, parts, padding)


def _tiles(place: np.ndarray, causal: np.ndarray, core: np.ndarray) -> tuple[Floats, Floats]:
    """Return rows of a tile of queries and of keys."""
    kind = np.where(core == CORES["sm_90"], 1, np.where(core == CORES["sm_100"], 2, 0))
    tables = [np.asarray(list(t.values()), np.float32) for t in (QUERIES, KEYS, CAUSAL_KEYS)]
    rows, full, half = (table[kind, place] for table in tables)
    return rows, np.where(causal, half, full)


def _parts(batch: Floats, heads: Floats, across: Floats, along: Floats, sms: Floats) -> Floats:
    """Return into how many parts FlashAttention 3 splits keys.

    ``across`` and ``along`` are tiles of queries of a head, and of keys.
    """
    most = np.minimum(along, sms)
    share = heads * across / sms
    counts = np.arange(1, TRIED + 1, dtype=np.float32)[:, None]
    filled = counts * share
    filled = np.where(counts <= most, filled / np.ceil(filled), 0)
    fewest = 1 + np.argmax(filled >= WORTH * filled.max(0), 0)
    limit = np.where((share >= FULL) | (along <= UNSPLIT), 1, fewest)
    own = np.ceil(batch * heads * across * along * MARGIN / sms)
    return np.asarray(np.maximum(np.minimum(np.ceil(along / own), limit), 1), np.float32)
