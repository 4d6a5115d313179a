"""Fused attention: 4 B H S T D flop at a share of the peak, or its bytes."""

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
    """Scores again, then the gradients of values, scores, queries and keys (Dao 2022).

    At a rate 1.2 times lower (Shah et al. 2024, Figures 5 and 6).
    """
    operands = (tensor("g", 4, 16, 1024, 64), *parts(1024, 2048))
    backward = call(f"{FLASH}_backward", *operands, out=(4, 16, 1024, 64))
    (found,) = kernels(backward, machine())
    product = 2 * 4 * 16 * 1024 * 2048 * 64
    assert found.time == pytest.approx(1.2 * 5 * product / (PEAK / 2) + FLOOR)
    inside = replace(backward, body=(attention(8, 8),))
    assert kernels(inside, machine()) == (found,)


# tokens, batch, heads, size of a head; microseconds that xFormers' issue 712 (forward) and CUTLASS'
# pull request 992 (backward) print for A100
PUBLISHED = [
    ("", 4096, 1, 8, 128, 751.7), ("", 8192, 2, 8, 128, 5434.2), ("", 1024, 16, 16, 64, 860.9),
    ("", 1024, 16, 16, 128, 1433.9), ("", 4096, 1, 4, 128, 422.2),
    ("_backward", 4096, 1, 8, 128, 2391.6), ("_backward", 8192, 2, 8, 128, 15580.3),
    ("_backward", 2048, 2, 8, 128, 1254.9), ("_backward", 4096, 2, 8, 128, 4016.8),
]  # fmt: skip


@pytest.mark.parametrize(("way", "tokens", "batch", "heads", "dim", "measured"), PUBLISHED)
def test_the_memory_efficient_kernel_is_slower_than_flash(
    way: str, tokens: int, batch: int, heads: int, dim: int, measured: float
) -> None:
    shape = (batch, heads, tokens, dim)
    operands = [tensor(n, *shape, dtype="f16") for n in ("gqkv" if way else "qkv")]
    a100 = machine("a100")
    times = {}
    for kernel in ("flash", "efficient"):
        name = f"aten._scaled_dot_product_{kernel}_attention{way}"
        (found,) = kernels(call(name, *operands, out=shape), a100)
        times[kernel] = found.time
    assert times["efficient"] == pytest.approx(measured, rel=0.35)
    assert times["efficient"] > 1.5 * times["flash"]


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
