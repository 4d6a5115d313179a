"""Products as tiles on multiprocessors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.devices.library import load_device
from costmodels.learnable.hardware import hardware
from costmodels.learnable.tiling import Tiling, tiling

SIDE = st.integers(1, 4096)


def run(batch: int, m: int, n: int, k: int, device: str = "v100-pcie-32gb") -> Tiling:
    """Tile one product; a batch of more than one is ``bmm``."""
    sides = [np.asarray([side], np.float32) for side in (batch, m, n, k)]
    batched = np.asarray([int(batch > 1)])
    return tiling(*sides, batched, hardware(load_device(device)))


def test_a_card_runs_the_tiles_of_its_generation() -> None:
    """Batched products on A100 have one tile shape, by names of kernels; V100 has smaller ones."""
    shapes = {name: run(64, 40, 40, 512, name) for name in ("a100-pcie-40gb", "v100-pcie-32gb")}
    assert (shapes["a100-pcie-40gb"].columns, shapes["a100-pcie-40gb"].rows) == (128, 128)
    assert shapes["v100-pcie-32gb"].padded < shapes["a100-pcie-40gb"].padded


def test_a_newer_card_runs_amperes_tiles() -> None:
    assert (run(64, 40, 40, 512, "h100-80gb-hbm3").columns) == 128


def test_rounds_of_batched_tiles_are_whole() -> None:
    one, two = run(108, 128, 128, 512, "a100-pcie-40gb"), run(109, 128, 128, 512, "a100-pcie-40gb")
    assert (one.rounds, two.rounds) == (1, 2)
    assert two.time == pytest.approx(2 * one.time, rel=1e-3)


def test_long_sums_are_split_to_balance_the_card() -> None:
    found = run(1, 1024, 1024, 8192)
    assert found.rounds == pytest.approx(max(found.share[0], 1 / 16))


def test_misaligned_rows_cost_pascal_cache_traffic() -> None:
    odd, even = run(1, 2048, 2048, 4095, "p100"), run(1, 2048, 2048, 4096, "p100")
    assert odd.cache == pytest.approx(1.875 * even.cache, rel=1e-4)
    on_volta = run(1, 2048, 2048, 4095), run(1, 2048, 2048, 4096)
    assert on_volta[0].cache == on_volta[1].cache


@given(st.integers(1, 512), st.tuples(SIDE, SIDE, SIDE))
def test_the_rival_is_slower_and_not_by_more_than_four(
    batch: int, sides: tuple[int, int, int]
) -> None:
    found = run(batch, *sides)
    assert found.time <= found.rival <= 4 * found.time * 1.0001
