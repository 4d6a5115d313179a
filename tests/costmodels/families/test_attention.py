"""Fused attention: 4 B H S T D flop at half the peak, or its bytes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from costmodels.families import rules
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import call, kernels, machine, tensor
from tests.costmodels.families.worked import FLOOR, PEAK, dram, width

FLASH = "aten._scaled_dot_product_flash_attention"


def parts(queries: int, keys: int) -> list[Tensor]:
    """Return query, key and value of 4 sequences and 16 heads of 64."""
    return [tensor("q", 4, 16, queries, 64), *(tensor(n, 4, 16, keys, 64) for n in "kv")]


def attention(queries: int, keys: int, **attributes: bool) -> Op:
    return call(FLASH, *parts(queries, keys), out=(4, 16, queries, 64), **attributes)


def test_two_products_of_every_query_and_key_at_half_the_peak() -> None:
    (found,) = kernels(attention(1024, 2048), machine())
    flop = 2 * 2 * 4 * 16 * 1024 * 2048 * 64
    assert found.time == pytest.approx(flop / (PEAK / 2) + FLOOR)
    assert found.outside and width(found) == 0.5


def test_a_causal_mask_spares_half() -> None:
    whole, half = (kernels(attention(1024, 1024, is_causal=c), machine())[0] for c in (False, True))
    assert half.time - FLOOR == pytest.approx((whole.time - FLOOR) / 2)


def test_one_query_a_step_reads_keys_and_values_from_memory() -> None:
    (found,) = kernels(attention(1, 4096), machine())
    moved = 4 * 4 * 16 * 64 * (1 + 4096 + 4096 + 1)
    assert found.time == pytest.approx(dram(moved) + FLOOR)


def test_a_gradient_takes_five_products_for_two() -> None:
    """Scores again, then the gradients of values, scores, queries and keys (Dao 2022)."""
    operands = (tensor("g", 4, 16, 1024, 64), *parts(1024, 2048))
    backward = call(f"{FLASH}_backward", *operands, out=(4, 16, 1024, 64))
    (found,) = kernels(backward, machine())
    product = 2 * 4 * 16 * 1024 * 2048 * 64
    assert found.time == pytest.approx(5 * product / (PEAK / 2) + FLOOR)
    inside = replace(backward, body=(attention(8, 8),))
    assert kernels(inside, machine()) == (found,)


def test_what_lacks_an_operand_or_recorded_its_calls_is_left_alone() -> None:
    whole = attention(64, 64)
    assert rules()[FLASH](replace(whole, operands=whole.operands[:2]), machine()) is None
    assert rules()[FLASH](replace(whole, body=(whole,)), machine()) is None
    rows = tuple(tensor(name, 64, 64, 64) for name in "qkv")
    assert rules()[FLASH](replace(whole, operands=rows), machine()) is None
    backward = replace(whole, name=f"{FLASH}_backward")
    assert rules()[backward.name](backward, machine()) is None
    noted = replace(whole, operands=(*whole.operands, 0.0, False))
    assert kernels(noted, machine()) == kernels(whole, machine())
