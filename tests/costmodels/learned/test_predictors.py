"""Shipped models as pricing asks them."""

from __future__ import annotations

import pytest

from costmodels.devices.library import load_device
from costmodels.learned.predictors import predictors
from costmodels.pricing.price import price
from irgraph.ir.cost import Kernel
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


@pytest.mark.parametrize(
    ("device", "software"), [("v100", "torch-1.10-cuda-11.3"), ("h100", "torch-2")]
)
def test_other_software_and_devices_are_left_to_formulas(device: str, software: str) -> None:
    names = {"h100": "H100-80GB-HBM3"}
    assert not predictors(load_device(names.get(device, device)), software)


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
