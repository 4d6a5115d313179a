"""Matrix products: which kernels, which sizes, and never below the roofline."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.devices.library import load_device
from costmodels.families import rules
from costmodels.families.gemm import LEARNED, layout
from costmodels.formulas.machine import Machine, ModelEstimate
from costmodels.formulas.products import product_kernels
from costmodels.formulas.tiles import Product, tiled_time
from costmodels.learned.predictors import predictors
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import NEW, OLD, call, kernels, machine, tensor, total

SIZES = st.integers(1, 3000)


def _transposed(t: Tensor) -> Tensor:
    return replace(t, shape=t.shape[::-1], strides=(1, t.shape[1]))


@given(st.integers(1, 64), SIZES, SIZES, SIZES, st.sampled_from(["tn", "nn", "nt"]))
def test_a_product_is_never_faster_than_its_roofline(
    b: int, m: int, n: int, k: int, letters: str
) -> None:
    on = machine()
    product = Product(b, m, n, k, "f32", letters)
    time = total(product_kernels(product, on))
    flops = 2.0 * b * m * n * k / on.sheet.peak("f32")[0] / 1e3
    assert time >= max(flops, on.stream(product.traffic))


@given(SIZES, SIZES, SIZES)
def test_no_card_takes_longer_for_a_smaller_batch_of_equal_products(m: int, n: int, k: int) -> None:
    on = machine("a100")
    few, many = (total(product_kernels(Product(b, m, n, k, "f32", "nn"), on)) for b in (2, 16))
    assert few <= many


def test_layout_names_the_column_factor_first() -> None:
    data, weight = tensor("x", 4, 8), tensor("w", 6, 8)
    gradient = tensor("g", 4, 6)
    assert layout(data, _transposed(weight)) == "tn"
    assert layout(gradient, weight) == "nn"
    assert layout(_transposed(gradient), data) == "nt"


def test_linear_of_2021_copies_its_bias_first() -> None:
    op = call("aten.linear", tensor("x", 64, 8), tensor("w", 16, 8), tensor("c", 16), out=(64, 16))
    old = kernels(op, machine(software=OLD))
    assert [k.family for k in old] == ["elementwise", "gemm"]
    assert [k.family for k in kernels(op, machine(software=NEW))] == ["gemm"]


def test_linear_without_bias_is_one_kernel() -> None:
    op = call("aten.linear", tensor("x", 64, 8), tensor("w", 16, 8), out=(64, 16))
    assert len(kernels(op, machine(software=OLD))) == 1


def test_linear_and_the_addmm_inside_it_cost_the_same() -> None:
    data, weight, bias = tensor("x", 2048, 512), tensor("w", 256, 512), tensor("c", 256)
    linear = call("aten.linear", data, weight, bias, out=(2048, 256))
    addmm = call("aten.addmm", bias, data, _transposed(weight), out=(2048, 256))
    for software in (OLD, NEW):
        on = machine(software=software)
        assert total(kernels(linear, on)) == total(kernels(addmm, on))


def test_linear_over_three_axes_multiplies_all_rows() -> None:
    op = call("aten.linear", tensor("x", 4, 32, 8), tensor("w", 16, 8), out=(4, 32, 16))
    assert "128x16x8" in kernels(op, machine())[0].name


def test_a_fused_epilogue_copies_no_bias_in_any_era() -> None:
    op = call(
        "irgraph.linear_relu", tensor("x", 64, 8), tensor("w", 16, 8), tensor("c", 16), out=(64, 16)
    )
    assert len(kernels(op, machine(software=OLD))) == 1


def test_a_matmul_with_recorded_calls_leaves_the_price_to_them() -> None:
    op = call("aten.matmul", tensor("x", 4, 8), tensor("w", 8, 2), out=(4, 2))
    assert kernels(op, machine())
    stacked = (tensor("x", 3, 4, 8), tensor("w", 3, 8, 2))
    batched = call("aten.matmul", *stacked, out=(3, 4, 2))
    assert kernels(batched, machine()) == kernels(replace(batched, name="aten.bmm"), machine())
    inside = replace(op, body=(replace(op, name="aten.mm"),))
    assert rules()["aten.matmul"](inside, machine()) is None


def test_a_weight_gradient_of_one_row_sums_its_parts_in_a_second_kernel() -> None:
    op = call("aten.mm", tensor("g", 1, 2048), tensor("x", 2048, 256), out=(1, 256))
    assert len(kernels(op, machine())) == 2


def test_free_splitting_helps_only_where_tiles_leave_multiprocessors_idle() -> None:
    narrow = Product(1, 256, 256, 4096, "f32", "tn")
    old, new = (total(product_kernels(narrow, machine(software=s))) for s in (OLD, NEW))
    assert new <= old
    square = Product(1, 8192, 8192, 512, "f32", "tn")
    old, new = (total(product_kernels(square, machine(software=s))) for s in (OLD, NEW))
    assert abs(new / old - 1) < 0.02


def test_tf32_is_off_unless_the_sheet_says_so() -> None:
    off = machine("a100")
    on = Machine(msgspec.structs.replace(load_device("a100"), tf32=True), off.software)
    product = Product(1, 4096, 4096, 4096, "f32", "tn")
    plain, units = (product_kernels(product, m)[0] for m in (off, on))
    assert units.time < plain.time / 3
    assert units.outside and not plain.outside


def test_a_product_in_tf32_is_priced_by_the_units_for_it() -> None:
    x, w, c = tensor("x", 4096, 4096), tensor("w", 4096, 4096), tensor("c", 4096)
    off = machine("a100")
    on = Machine(msgspec.structs.replace(load_device("a100"), tf32=True), off.software)
    for name, *operands in (("mm", x, w), ("linear", x, w, c), ("addmm", c, x, w)):
        plain = call(f"aten.{name}", *operands, out=(4096, 4096))
        rounded = replace(plain, name=f"irgraph.{name}_tf32")
        assert total(kernels(rounded, off)) == total(kernels(plain, on))
        assert total(kernels(rounded, off)) < total(kernels(plain, off)) / 3
        assert kernels(rounded, off)[-1].outside


def test_without_units_for_it_a_product_in_tf32_is_one_of_f32() -> None:
    plain = call("aten.bmm", tensor("x", 8, 64, 64), tensor("w", 8, 64, 64), out=(8, 64, 64))
    rounded = replace(plain, name="irgraph.bmm_tf32")
    assert kernels(rounded, machine("v100")) == kernels(plain, machine("v100"))


def test_models_trained_on_f32_are_not_asked_about_products_in_tf32() -> None:
    asked: list[str | float] = []

    def model(sizes: Mapping[str, float | str]) -> ModelEstimate | None:
        asked.append(sizes["dtype"])
        return ModelEstimate(42.0, 1.0, model="mlp") if sizes["dtype"] == "f32" else None

    op = call("irgraph.mm_tf32", tensor("x", 64, 64), tensor("w", 64, 64), out=(64, 64))
    base = machine("a100")
    on = Machine(base.sheet, base.software, learned={"gemm": model})
    assert [k.by for k in kernels(op, on)] == ["heuristic"]
    assert asked == ["tf32"]
    shipped = Machine(base.sheet, base.software, learned=predictors(base.sheet, NEW))
    assert kernels(op, shipped) == kernels(op, base)


def test_half_precision_uses_the_matrix_units_and_half_the_bytes() -> None:
    on = machine("a100")
    single, half = (
        product_kernels(Product(1, 4096, 4096, 4096, d, "tn"), on)[0].time for d in ("f32", "f16")
    )
    assert half < single / 5


def test_a_trained_model_is_asked_first_and_named() -> None:
    asked: dict[str, float | str] = {}

    def model(sizes: Mapping[str, float | str]) -> ModelEstimate | None:
        asked.update(sizes)
        return ModelEstimate(42.0, 1.0, outside=True, model="mlp") if sizes["m"] == 64 else None

    base = machine()
    on = Machine(base.sheet, base.software, learned={"gemm": model})
    (found,) = product_kernels(Product(1, 64, 16, 8, "f32", "tn"), on)
    assert (found.time, found.by, found.outside, found.formula) == (42.0, "learned", True, "mlp")
    assert asked["n"] == 16 and asked["k"] == 8 and asked["layout"] == "tn"
    (fallback,) = product_kernels(Product(1, 65, 16, 8, "f32", "tn"), on)
    assert fallback.by == "heuristic"


@pytest.mark.parametrize(("batch", "measured"), [(1, "tn"), (8, "nn")])
def test_intervals_are_narrowest_in_the_layout_that_was_measured(batch: int, measured: str) -> None:
    base = machine()
    on = Machine(base.sheet, base.software, learned=predictors(base.sheet, NEW))
    spreads = {}
    for name in ("tn", "nn", "nt"):
        (found,) = product_kernels(Product(batch, 512, 512, 512, "f32", name), on)
        assert found.by == "learned"
        spreads[name] = found.spread
    own = spreads.pop(measured)
    assert all(own < other for other in spreads.values())


def test_a_product_in_fp8_does_not_pay_for_rounding_that_was_done_before() -> None:
    base = machine("h100")
    learned = Machine(base.sheet, base.software, learned=predictors(base.sheet, NEW))
    x, w = (tensor(name, 4096, 4096, dtype="f8e4m3") for name in "xw")
    scale = tensor("s")
    op = call("aten._scaled_mm", x, replace(w, strides=(1, 4096)), scale, scale, out=(4096, 4096))
    (kernel,) = kernels(op, learned)
    (whole,) = product_kernels(Product(1, 4096, 4096, 4096, "f8e4m3", "tn"), learned)
    assert kernel.by == whole.by == "learned"
    rounding = 3 * 4096**2 / base.sheet.bandwidth / 1e3 + 2.7
    assert whole.time - kernel.time == pytest.approx(rounding)
    assert 700 < 2 * 4096**3 / kernel.time / 1e6 < 1979  # TFLOP/s, below the peak
    assert kernels(op, base)[0].by == "heuristic"


def test_long_sums_of_small_products_are_split_over_the_card() -> None:
    """Measured (published products in bf16, 32 x 32 x 65536): 13.2 us on an A100-SXM4-80GB."""
    found, how = tiled_time(Product(1, 32, 32, 65536, "bf16", "tn"), machine("a100-sxm4-80gb"))
    assert found == pytest.approx(13.2, rel=0.15)
    assert "split" in how


@pytest.mark.parametrize("side", "mnk")
def test_the_learned_model_answers_products_of_two_rows_and_not_vectors(side: str) -> None:
    sizes = {"batch": 1, "m": 64, "n": 64, "k": 64}
    assert LEARNED.query({**sizes, side: 2}) is not None
    assert LEARNED.query({**sizes, side: 1}) is None


def _bf16(m: int, n: int, k: int, device: str, letters: str = "nn") -> float:
    sheet = load_device(device)
    on = replace(machine(device), learned=predictors(sheet, NEW))
    return total(product_kernels(Product(1, m, n, k, "bf16", letters), on))


@pytest.mark.parametrize(("side", "tflops"), [(2055, 115.6), (2057, 106.8), (2073, 112.0)])
def test_odd_sides_take_longer_by_as_much_as_was_published(side: int, tflops: float) -> None:
    """pytorch/pytorch issue 181718, RTX 4090, bf16: 155.9 TFLOP/s with sides of 2,040."""
    rates = [s**3 / _bf16(s, s, s, "rtx-4090") for s in (2040, side)]
    assert rates[0] / rates[1] == pytest.approx(155.9 / tflops, rel=0.12)


def test_an_odd_vocabulary_makes_a_step_of_gpt_2_longer_by_a_quarter() -> None:
    """A. Karpathy, February 2023: 50,304 for 50,257, A100; the output layer beside the others.

    Products of a step of GPT-2 with 124 million parameters, batch of 12 x 1,024 tokens; the rest of
    the step, a third of it, stays as it is.
    """
    tokens, width = 12 * 1024, 768
    layers = [(2304, width), (width, width), (4 * width, width), (width, 4 * width)]

    def step(vocabulary: int) -> float:
        sides = [*layers * 12, (vocabulary, width)]
        forward = sum(_bf16(tokens, n, k, "a100", "tn") for n, k in sides)
        of_data = sum(_bf16(tokens, k, n, "a100", "nn") for n, k in sides)
        return forward + of_data + sum(_bf16(n, k, tokens, "a100", "nt") for n, k in sides)

    rest = step(50304) / 2
    assert 1.15 < (step(50257) + rest) / (step(50304) + rest) < 1.35


def test_only_rows_that_begin_off_borders_take_longer() -> None:
    on = machine("a100")
    even, odd, half = (
        product_kernels(Product(1, 4096, n, 4096, "f16", "tn"), on)[0] for n in (4096, 4097, 4100)
    )
    assert "off 16 bytes" in odd.formula
    assert odd.outside
    assert even.time < half.time < odd.time
    free = {"rows of a plain factor": (4097, 4096, 4096, "tn"), "depth": (4096, 4096, 4097, "nt")}
    for rows, columns, depth, letters in free.values():
        made = product_kernels(Product(1, rows, columns, depth, "f16", letters), on)[0]
        assert "off 16 bytes" not in made.formula
    plain = product_kernels(Product(1, 4096, 4097, 4096, "f32", "tn"), machine("v100"))[0]
    assert "off 16 bytes" not in plain.formula


def test_what_only_moves_is_no_slower_for_odd_sides() -> None:
    on = machine("a100")
    first = product_kernels(Product(1, 65536, 16, 16, "f16", "tn"), on)[0]
    odd = product_kernels(Product(1, 65536, 17, 17, "f16", "tn"), on)[0]
    assert odd.time < 1.25 * first.time
