"""Shipped models as pricing asks them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from costmodels.devices.library import load_device
from costmodels.families import rules
from costmodels.formulas.machine import Machine, ModelEstimate
from costmodels.formulas.products import product_kernels
from costmodels.formulas.software import software_profile
from costmodels.formulas.tiles import Product
from costmodels.learned.predictors import predictors
from costmodels.pricing.price import price
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.text import parse

PRODUCT = {"dtype": "f32", "layout": "tn", "batch": 1, "m": 512, "n": 512, "k": 512}
MODEL = """model "m" { format = 1 }

device @gpu0 "v100"
input %x : f32[2048, 512] in $b1
param %w : f32[1024, 512] in $b2

%y = aten.linear(%x, %w) : f32[2048, 1024] in $b3
"""


def kernels(software: str, device: str = "v100") -> tuple[Kernel, ...]:
    graph, sheet = parse(MODEL), load_device(device)
    priced = price(graph, sheet, software=software, learned=predictors(sheet, software))
    return priced.of(graph.ops[0])


def test_a_learned_kernel_says_so() -> None:
    (kernel,) = kernels("torch-2")
    assert kernel.by == "learned"
    assert not kernel.outside
    assert 0 < kernel.spread < kernel.time
    assert "trained on" in kernel.formula


def test_learned_and_heuristic_agree_roughly() -> None:
    (learned,) = kernels("torch-2")
    (formula,) = kernels("torch-2", "v100-pcie-16gb")[-1:]
    assert learned.time == pytest.approx(formula.time, rel=0.35)


def test_other_software_is_left_to_formulas() -> None:
    assert not predictors(load_device("v100"), "torch-1.10-cuda-11.3")


@pytest.mark.parametrize("device", ["h100", "mi300x"])
def test_float32_on_other_devices_is_left_to_formulas(device: str) -> None:
    asks = predictors(load_device(device), "torch-2")
    assert "gemm" not in asks
    assert all(ask(PRODUCT) is None for name, ask in asks.items() if name == "gemm_units")


def asked(dtype: str, device: str, **changes: object) -> ModelEstimate | None:
    ask = predictors(load_device(device), "torch-2")["gemm_units"]
    sizes = {"m": 4096, "n": 4096, "k": 4096, "dtype": dtype}
    return ask({**PRODUCT, **sizes, **changes})


@pytest.mark.parametrize(
    ("device", "least", "most"),
    [("h100", 500, 900), ("b200", 1000, 2000), ("a100-80gb", 200, 290), ("rtx-pro-6000", 300, 450)],
)
def test_products_in_bf16_run_at_what_large_ones_reach(
    device: str, least: float, most: float
) -> None:
    found = asked("bf16", device)
    assert found and not found.outside
    assert least < 2 * 4096**3 / found.time / 1e6 < most
    assert 0 < found.spread < 0.25 * found.time


def test_a_card_never_measured_is_told_as_such() -> None:
    strange, known = asked("bf16", "l40s"), asked("bf16", "h100")
    assert strange and known and strange.outside
    assert strange.spread / strange.time > 2 * known.spread / known.time


RTX_4090 = {
    (512, 3840, 15360): 385, (512, 4096, 14336): 385, (512, 28672, 4096): 735,
    (512, 3840, 4096): 114, (512, 4096, 3840): 105, (512, 4096, 4096): 112,
    (512, 12288, 4096): 330, (512, 512, 512): 5.75, (1024, 1024, 1024): 17.3,
    (2048, 2048, 2048): 110, (4096, 4096, 4096): 818, (2040, 2040, 2040): 108.9,
}  # fmt: skip
RTX_5090 = {
    (512, 4096, 14336): 296, (512, 28672, 4096): 556, (512, 4096, 4096): 95.2,
    (512, 12288, 4096): 250.2, (512, 512, 512): 6.14, (1024, 1024, 1024): 14.51,
    (2048, 2048, 2048): 98.36, (4096, 4096, 4096): 640.9,
}  # fmt: skip
"""Microseconds of f16 products (rows, columns, depth) by cuBLAS: public sweeps of cloudrift-ai/emmy
of July 2026, and torch issue 181718 (2040)."""


@pytest.mark.parametrize(("device", "rows"), [("rtx-4090", RTX_4090), ("rtx-5090", RTX_5090)])
def test_products_of_geforce_cards_take_what_others_measured(
    device: str, rows: dict[tuple[int, int, int], float]
) -> None:
    errors = []
    for (m, n, k), time in rows.items():
        found = asked("f16", device, m=m, n=n, k=k)
        assert found is not None
        errors.append(abs(found.time / time - 1))
    assert sum(errors) / len(errors) < 0.06
    assert max(errors) < 0.2


def test_no_card_is_faster_than_its_large_products_were() -> None:
    found = asked("f16", "l4", m=8192, n=8192, k=8192)
    assert found and 52.47 <= 2 * 8192**3 / found.time / 1e6 <= 53.8  # sustained, short


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_sums_of_a_depth_measured_once_are_outside(layout: str) -> None:
    measured = asked("f16", "v100", m=1024, n=1024, k=4096, layout=layout)
    deep = asked("f16", "v100", m=1024, n=16, k=500_000, layout=layout)
    assert measured and deep
    assert (measured.outside, deep.outside) == (False, True)
    assert deep.spread > 0.6 * deep.time


def test_types_take_the_units_that_they_run_on() -> None:
    times = [asked(kind, "h100") for kind in ("f8e4m3", "f16", "tf32")]
    assert all(found is not None for found in times)
    assert [found.time for found in times if found] == sorted(f.time for f in times if f)
    assert asked("f16", "v100", layout="tt") is None


def test_batched_products_and_gradients_are_less_certain() -> None:
    plain, batched, gradient = (
        asked("bf16", "h100", **changes) for changes in ({}, {"batch": 4}, {"layout": "nt"})
    )
    assert plain and batched and gradient
    assert batched.time > 3 * plain.time
    for doubtful in (batched, gradient):
        assert doubtful.spread / doubtful.time > plain.spread / plain.time


FLASH, CUDNN = "_scaled_dot_product_flash", "_scaled_dot_product_cudnn"


def attention(
    causal: bool = False,
    dim: int = 64,
    value: int = 0,
    kind: str = FLASH,
    device: str = "a100-80gb",
) -> Kernel:
    query, key = (Tensor(n, "bf16", (2, 32, 4096, dim), f"b{n}") for n in "qk")
    values = Tensor("v", "bf16", (2, 32, 4096, value or dim), "bv")
    bias = (Tensor("m", "bf16", (2, 32, 4096, 4096), "bm"),) * (kind == CUDNN)
    op = Op(f"aten.{kind}_attention", (query, key, values, *bias), (replace(values, name="o"),))
    sheet, software = load_device(device), software_profile("torch-2")
    on = Machine(sheet, software, learned=predictors(sheet, "torch-2"))
    found = rules()[op.name](replace(op, attributes={"is_causal": True} if causal else {}), on)
    assert found is not None
    return found[0]


def test_attention_is_learned_with_a_causal_mask_and_without() -> None:
    whole, half = attention(), attention(causal=True)
    assert (whole.by, half.by) == ("learned", "learned")
    assert whole.outside and half.outside  # measured with a cache of pages only
    assert 1.4 < whole.time / half.time < 2.2
    rate = 4 * 2 * 32 * 4096**2 * 64 / whole.time / 1e6
    assert 130 < rate < 230  # TFLOP/s; FlashAttention-2 reports up to 190


def test_attention_of_another_kind_is_left_to_the_formula() -> None:
    assert attention(kind=CUDNN).by == "heuristic"  # scores with a bias
    assert attention(value=128).by == "heuristic"


@pytest.mark.parametrize(
    ("device", "heads", "dim", "causal", "least", "most"),
    [
        ("rtx-4090", 8, 128, False, 18, 19),
        ("rtx-4090", 8, 64, False, 10, 11),
        ("rtx-4090", 16, 256, True, 34, 41),
        ("rtx-5090", 8, 128, False, 18, 18.5),
        ("rtx-5090", 8, 64, False, 10.2, 10.5),
    ],
)
def test_attention_of_geforce_cards_takes_what_others_measured(
    device: str, heads: int, dim: int, causal: bool, least: float, most: float
) -> None:
    """Public sweeps of cloudrift-ai/emmy (July 2026): torch's fused attention over 512 keys."""
    tensors = tuple(Tensor(n, "f16", (1, heads, 512, dim), f"b{n}") for n in "qkvo")
    attributes = {"is_causal": True} if causal else {}
    op = Op(f"aten.{FLASH}_attention", tensors[:3], tensors[3:], attributes=attributes)
    sheet = load_device(device)
    on = Machine(sheet, software_profile("torch-2"), learned=predictors(sheet, "torch-2"))
    (kernel,) = rules()[op.name](op, on) or ()
    assert least <= kernel.time <= most


def test_heads_of_a_size_that_only_another_kernel_had_are_outside() -> None:
    known, other = attention(True, 128, device="b200"), attention(dim=128, device="b200")
    assert other.by == "learned" and other.outside and not known.outside
    assert other.spread / other.time > known.spread / known.time + 0.4


@pytest.mark.parametrize(("device", "mhz"), [("v100", 1297), ("h100", 1500)])
def test_at_a_locked_clock_learned_models_are_outside(device: str, mhz: int) -> None:
    name = "gemm" if device == "v100" else "gemm_units"
    sizes = {**PRODUCT, "dtype": "f32" if device == "v100" else "bf16"}
    free, locked = (
        predictors(load_device(clock), "torch-2")[name](sizes)
        for clock in (device, f"{device}@{mhz}")
    )
    assert free and locked
    assert locked.outside and not free.outside
    assert locked.spread / locked.time > free.spread / free.time + 0.4


def test_products_in_fp8_beyond_what_was_measured_are_left_to_the_formula() -> None:
    found = {}
    for device in ("h100", "l40s"):
        sheet = load_device(device)
        on = Machine(sheet, software_profile("torch-2"), learned=predictors(sheet, "torch-2"))
        (found[device],) = product_kernels(Product(1, 4096, 4096, 4096, "f8e4m3", "tn"), on)
    assert (found["h100"].by, found["l40s"].by) == ("learned", "heuristic")


LAYERS = """model "m" { format = 1 }

device @gpu0 "a100-80gb"
input %x : f16[4096, 4096] in $x
input %y : f16[4096, 4096] in $y
input %i : i64[4096] in $i
param %t : f16[32000, 4096] in $t

%a = aten.add(%x, %y) : f16[4096, 4096] in $a
%g = aten.gelu(%a) : f16[4096, 4096] in $g
%e = aten.embedding(%t, %i) : f16[4096, 4096] in $e
"""


def test_kernels_between_products_are_learned_in_f16() -> None:
    sheet, graph = load_device("a100-80gb"), parse(LAYERS)
    priced = price(graph, sheet, learned=predictors(sheet, "torch-2"))
    (add,), (gelu,), (newer,) = (priced.of(op) for op in graph.ops)
    older = price(graph, sheet, learned=predictors(sheet, "torch-2.7"), software="torch-2.7")
    (lookup,) = older.of(graph.ops[2])
    assert {k.by for k in (add, gelu, lookup)} == {"learned"}
    assert all(45 < kernel.time < 75 for kernel in (add, gelu))
    assert lookup.time > 3 * gelu.time  # element by element, far below the memory's speed
    assert newer.by == "heuristic" and newer.time < 1.5 * gelu.time


@pytest.mark.parametrize("change", [{"dtype": "f16"}, {"n": 1}, {"k": 1}])
def test_what_was_not_measured_is_left_to_formulas(change: dict[str, object]) -> None:
    ask = predictors(load_device("v100"), "torch-2")["gemm"]
    assert ask({**PRODUCT, **change}) is None
    assert ask(PRODUCT) is not None


def test_gradients_of_products_are_less_certain() -> None:
    ask = predictors(load_device("v100"), "torch-2")["gemm"]
    forward, gradient = ask(PRODUCT), ask({**PRODUCT, "layout": "nt"})
    assert forward and gradient
    assert gradient.spread > 1.5 * forward.spread


def test_only_unary_ops_are_asked_of_the_elementwise_model() -> None:
    ask = predictors(load_device("v100"), "torch-2")["elementwise"]
    assert ask({"op": "add", "elements": 1000, "dtype": "f32"}) is None
    told = ask({"op": "relu_", "elements": 2048 * 1024, "dtype": "f32"})
    assert told and told.time == pytest.approx(21.4, rel=0.1)


def test_a_scalar_operand_is_that_of_the_measured_op() -> None:
    """By formula ``pow`` is 10 % short on P100, where its arithmetic shows."""
    text = MODEL.replace(
        "aten.linear(%x, %w) : f32[2048, 1024]", "aten.pow(%x, 3) : f32[2048, 512]"
    )
    sheet = load_device("p100")
    (kernel,) = price(graph := parse(text), sheet, learned=predictors(sheet, "torch-2")).of(
        graph.ops[0]
    )
    assert kernel.by == "learned"
    (formula,) = price(graph, sheet).of(graph.ops[0])
    assert kernel.time > 1.02 * formula.time


def test_only_forward_softmax_is_known() -> None:
    ask = predictors(load_device("v100"), "torch-2")["softmax"]
    sizes = {"rows": 512, "cols": 512, "dtype": "f32"}
    assert ask({"op": "_softmax_backward_data", **sizes}) is None
    assert ask({"op": "_softmax", **sizes}) is not None


CONVOLUTION = """model "m" {{ format = 1 }}

device @gpu0 "{device}"
input %x : f32[32, 64, 56, 56] in $b1
param %w : f32[128, 64, {window}, {window}] in $b2

%y = aten.convolution(%x, %w, {rest}) : f32[32, 128, 56, 56] in $b3
"""
WINDOW = "stride = [1, 1], padding = [{0}, {0}], dilation = [{0}, {0}], transposed = false, "
WINDOW += "output_padding = [0, 0], groups = 1"


def convolution(device: str = "v100", window: int = 3, gap: int = 1) -> Kernel:
    rest = WINDOW.format(gap if window == 3 else 0)
    graph = parse(CONVOLUTION.format(device=device, window=window, rest=rest))
    sheet = load_device(device)
    return price(graph, sheet, learned=predictors(sheet, "torch-2")).of(graph.ops[0])[0]


def test_a_convolution_of_the_measured_kind_is_learned() -> None:
    kernel = convolution()
    bound = 2 * 32 * 56 * 56 * 128 * 64 * 9 / 15.7e12 * 1e6
    assert kernel.by == "learned"
    assert bound / 2.25 < kernel.time < 3 * bound


@pytest.mark.parametrize(("window", "gap"), [(1, 1), (3, 2)])
def test_other_windows_are_left_to_the_formula(window: int, gap: int) -> None:
    assert convolution(window=window, gap=gap).by == "heuristic"


def test_convolutions_of_a_card_that_was_not_measured_are_left_to_the_formula() -> None:
    assert convolution("a100-pcie-40gb").by == "heuristic"
