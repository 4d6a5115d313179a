"""Blocks of fused attention, worked by hand for a card each."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.devices.library import load_device
from costmodels.families import learned_families
from costmodels.learnable.attention_blocks import Blocks, attention_blocks


def run(card: str, *, causal: bool = False, split: bool = False, **sizes: int) -> Blocks:
    """Return the blocks of one pass; heads of 64, and as many of keys, unless said otherwise."""
    asked = {"batch": 1, "heads": 1, "kv_heads": sizes.get("heads", 1), "dim": 64, **sizes}
    columns = {name: np.asarray([size], np.float32) for name, size in asked.items()}
    device = learned_families()["attention"].campaign.hardware([load_device(card)])
    return attention_blocks(columns, np.asarray([causal]), np.asarray([split]), device)


@pytest.mark.parametrize(
    ("seq", "rounds", "steps"),
    [
        (1536, 1, 8),  # 8 tiles of 192 queries by 16 heads on 132 multiprocessors
        (2048, 2, 11),  # 176 blocks
        (6144, 4, 32),  # 512 blocks
    ],
)
def test_blocks_run_in_rounds(seq: int, rounds: int, steps: int) -> None:
    found = run("h100-80gb-hbm3", heads=16, seq=seq)
    assert (found.rounds[0], found.steps[0], found.parts[0]) == (rounds, steps, 1)


@pytest.mark.parametrize(
    ("seq", "parts", "rounds", "steps"),
    [
        (6144, 4, 1, 8),  # 32 blocks, four times as many fill 128 of 132
        (8192, 3, 1, 15),  # 43 blocks of 43 tiles of keys
        (9216, 3, 2, 16),  # 144 parts no longer fit beside each other
        (12288, 2, 1, 32),
        (768, 1, 1, 4),  # four tiles of keys are not split
        (65536, 1, 3, 342),
    ],
)
def test_keys_of_few_blocks_are_split(seq: int, parts: int, rounds: int, steps: int) -> None:
    found = run("h100-80gb-hbm3", seq=seq, split=True)
    assert (found.parts[0], found.rounds[0], found.steps[0]) == (parts, rounds, steps)
    assert run("h100-80gb-hbm3", seq=seq).parts[0] == 1
    assert run("b200", seq=seq, split=True).parts[0] == 1


def test_queries_of_one_key_head_share_tiles() -> None:
    grouped = {"batch": 16, "heads": 64, "kv_heads": 1, "dim": 128, "seq": 32}
    found = run("h100-80gb-hbm3", causal=True, **grouped)
    assert (found.rounds[0], found.steps[0]) == (2, 1)  # 16 tiles of 128 in 16 sequences
    apart = run("b200", causal=True, **grouped)
    assert apart.rounds[0] == 7  # each of 1,024 heads has a tile of its own
    assert run("b200", causal=True, **{**grouped, "seq": 1}).rounds[0] == 1


def test_a_causal_pass_sees_half_of_the_keys_and_its_diagonal() -> None:
    assert run("b200", causal=True, seq=512).steps[0] == 3  # blocks of 2 and of 4 tiles
    assert run("b200", causal=True, seq=128).steps[0] == 1


def test_heads_are_padded_to_a_size_that_is_compiled() -> None:
    wide, narrow = run("h200", dim=72, seq=1152), run("h200", dim=96, seq=1152)
    assert wide.flops[0] == narrow.flops[0] == 4 * 192 * 144 * 96
    assert wide.padding[0] == pytest.approx(96 / 72)
