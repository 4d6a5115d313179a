"""Matrix products on matrix units, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.learnable.unit_tiles import ROUND, TILES, Tiling, tiling


def tiled(m: int, n: int, k: int, batch: int = 1, sms: float = 100, peak: float = 1e5) -> Tiling:
    """Return how a product runs on units of 100 TFLOP/s over 100 multiprocessors."""
    values = (np.asarray([v], np.float32) for v in (batch, m, n, k, peak, sms))
    return tiling(*values)


def test_a_full_round_takes_one_tiles_time() -> None:
    """100 tiles of 128 x 128: each 2 x 128 x 128 x 640 FLOP at 1 TFLOP/s a multiprocessor."""
    found = tiled(1280, 1280, 640)
    assert found.time[0] == pytest.approx(2 * 128 * 128 * 640 / 1e6 + ROUND)
    assert (found.rows[0], found.columns[0], found.rounds[0]) == (128, 128, 1)


def test_one_tile_too_many_takes_another_round() -> None:
    full, more = tiled(1280, 1280, 640), tiled(1281, 1280, 640)
    assert more.time[0] > full.time[0]


def test_few_tiles_of_a_deep_sum_are_split() -> None:
    found = tiled(64, 64, 8192)
    assert found.parts[0] > 1
    assert found.time[0] < 2 * 64 * 64 * 8192 / 1e6


def test_batches_fill_the_card_as_rows_do() -> None:
    assert tiled(128, 128, 640, batch=100).time[0] == tiled(1280, 1280, 640).time[0]
    assert len(tiled(1, 1, 1).menu) == 4 * len(TILES)
