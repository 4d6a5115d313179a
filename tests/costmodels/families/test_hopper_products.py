"""Products on Hopper that its own matrix units do not compute: odd rows, and batches in f32."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.formulas.products import product_kernels
from costmodels.formulas.tiles import Product
from irgraph.ir.points.point_values import PointValues
from tests.costmodels.families.helpers import machine, total

ROWS = {
    (36, 616, 1072, 691, "tn"): 354.3,
    (657, 689, 230, 1931, "nn"): 3515.7,
    (1105, 383, 277, 48, "nn"): 317.0,
    (712, 20, 138, 663, "nn"): 147.8,
    (44, 1204, 674, 772, "tn"): 310.6,
    (929, 1827, 4, 852, "nn"): 1315.8,
    (734, 1896, 2, 8, "tn"): 63.5,
}
"""Microseconds of batched products in bf16 (batch, rows, columns, depth), H100 SXM, torch 2.11."""


def _time(sizes: tuple[float, ...], letters: str, card: str = "h100", dtype: str = "bf16") -> float:
    batch, rows, columns, depth = sizes
    product = Product(batch, rows, columns, depth, dtype, letters)  # type: ignore[arg-type]
    return total(product_kernels(product, machine(card)))


@pytest.mark.parametrize(("case", "measured"), list(ROWS.items()))
def test_measured_products_come_out_within_a_quarter(
    case: tuple[int, int, int, int, str], measured: float
) -> None:
    *sizes, letters = case
    assert _time(tuple(sizes), letters) == pytest.approx(measured, rel=0.25)


def test_a_window_of_49_tokens_takes_as_long_as_it_did() -> None:
    """A traced Swin-T (f16, batch 64): scores times values, three heads of 32."""
    assert _time((12288, 49, 32, 49), "nn", dtype="f16") == pytest.approx(117.6, rel=0.15)


def test_a_padded_vocabulary_gains_what_aligned_rows_do() -> None:
    """A traced GPT-2 took 6,627 us for 50,257 words; 50,304 have kernels of the card's own."""
    odd, even = (_time((1, 8192, words, 768), "tn") for words in (50257, 50304))
    assert odd == pytest.approx(6627, rel=0.3)
    assert odd > 2.5 * even


@pytest.mark.parametrize(
    ("sizes", "letters", "measured"),
    [
        ((540, 986, 487, 303), "nn", 3557),
        ((544, 110, 1106, 345), "nn", 1154),
        ((2067, 516, 25, 1547), "nn", 3517),
        ((1585, 11, 100, 521), "nn", 196),
        ((52, 713, 428, 279), "nn", 246),
        ((233, 1170, 2, 201), "nn", 120),
    ],
)
def test_batched_products_in_f32_come_out_within_a_quarter(
    sizes: tuple[int, int, int, int], letters: str, measured: float
) -> None:
    assert _time(sizes, letters, dtype="f32") == pytest.approx(measured, rel=0.25)


def test_interactions_of_a_traced_dlrm_take_as_long_as_they_did() -> None:
    """Batch 512, 27 vectors of 128: 8.7 us forward, 8.8 and 9.7 backward."""
    assert _time((512, 27, 27, 128), "tn", dtype="f32") == pytest.approx(8.7, rel=0.5)
    assert _time((512, 27, 128, 27), "nn", dtype="f32") == pytest.approx(8.8, rel=0.15)


def test_single_products_and_other_cards_keep_their_tiles() -> None:
    for sizes, card in (((1, 512, 512, 512), "h100"), ((64, 512, 512, 512), "a100")):
        product = Product(*sizes, "f32", "nn")
        (found,) = product_kernels(product, machine(card))
        assert "batched f32" not in found.formula


def test_other_cards_of_the_kind_are_outside_what_was_measured() -> None:
    product = Product(1, 4096, 4097, 4096, "f16", "tn")
    here, other = (product_kernels(product, machine(card))[0] for card in ("h100", "b200"))
    assert not here.outside
    assert other.outside
    assert other.spread / other.time > here.spread / here.time
    assert "older matrix units" not in product_kernels(product, machine("a100"))[0].formula


@pytest.mark.parametrize(("batch", "dtype"), [(1, "bf16"), (16, "f32")])
def test_many_points_take_what_each_takes(batch: int, dtype: str) -> None:
    rows = [128, 999, 4096, 70000]
    many = _time((batch, PointValues(np.asarray(rows)), 1001, 768), "tn", dtype=dtype)
    assert isinstance(many, PointValues)
    each = [_time((batch, size, 1001, 768), "tn", dtype=dtype) for size in rows]
    assert many.values.tolist() == each
