"""Convolutions, norms, softmax, transposes, views; and what every family must keep to."""

from __future__ import annotations

from pathlib import Path

import pytest

import costmodels.families as families
from costmodels.formulas.machine import Answer, Machine
from irgraph.ir.cost import PROVENANCES
from irgraph.ir.op import Op
from irgraph.ir.schema import schemas_of
from tests.costmodels.families.helpers import call, kernels, machine, tensor, total


def test_a_convolution_is_an_implicit_product() -> None:
    op = call(
        "aten.convolution", tensor("x", 32, 64, 56, 56), tensor("w", 64, 64, 3, 3),
        out=(32, 64, 56, 56),
    )  # fmt: skip
    flops = 2 * 32 * 56 * 56 * 64 * 64 * 9
    assert total(kernels(op, machine())) >= flops / machine().sheet.peak("f32")[0] / 1e3


def test_a_convolution_gradient_is_a_product_for_each_result() -> None:
    data, weight, grad = tensor("x", 8, 16, 9, 9), tensor("w", 4, 16, 3, 3), tensor("g", 8, 4, 7, 7)
    both = Op(
        "aten.convolution_backward",
        (grad, data, weight),
        (tensor("gx", 8, 16, 9, 9), tensor("gw", 4, 16, 3, 3), None),
    )
    assert len(kernels(both, machine())) == 2
    first_layer = Op(both.name, both.operands, (None, tensor("gw", 4, 16, 3, 3), None))
    assert len(kernels(first_layer, machine())) == 1


def test_batch_norm_moves_its_data_more_often_backward() -> None:
    data = tensor("x", 32, 64, 56, 56)
    forward = call("aten.native_batch_norm", data, out=(32, 64, 56, 56))
    backward = call("aten.native_batch_norm_backward", data, data, out=(32, 64, 56, 56))
    assert total(kernels(forward, machine())) < total(kernels(backward, machine()))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("aten._softmax", "softmax"),
        ("aten.native_layer_norm", "layer_norm"),
        ("aten.relu", "elementwise"),
    ],
)
def test_trained_models_of_other_families_are_asked(name: str, family: str) -> None:
    base = machine()
    on = Machine(base.sheet, base.software, learned={family: lambda sizes: Answer(7.0, 0.5)})
    op = call(name, tensor("x", 64, 128), out=(64, 128))
    assert kernels(op, on)[0].by == "learned"


def test_fused_attention_grows_with_the_square_of_the_sequence() -> None:
    times = []
    for length in (1024, 2048):
        parts = [tensor(n, 4, 16, length, 64) for n in "qkv"]
        name = "aten._scaled_dot_product_flash_attention"
        times.append(total(kernels(call(name, *parts, out=(4, 16, length, 64)), machine())))
    assert 3.5 < times[1] / times[0] < 4.1


def test_a_transpose_that_copies_costs_more_than_a_straight_copy() -> None:
    op = call("aten.transpose_copy", tensor("x", 1024, 1024), out=(1024, 1024))
    straight = call("aten.clone", tensor("x", 1024, 1024), out=(1024, 1024))
    assert total(kernels(op, machine())) > total(kernels(straight, machine()))


def test_views_and_allocations_launch_nothing() -> None:
    for name in ("aten.view", "aten.t", "aten.empty", "aten.detach"):
        assert kernels(call(name, tensor("x", 4, 4), out=(4, 4)), machine()) == ()


def test_every_op_that_a_family_claims_exists_in_torch_or_here() -> None:
    old = {"aten._fused_dropout", "aten.concat", "aten.cudnn_convolution_backward"}
    unknown = [
        name
        for name in families.rules()
        if not schemas_of(name) and name not in old and not name.startswith("fbgemm.")
    ]
    # in-place forms and methods are listed by rule; what matters is that most names are right
    assert len(unknown) < len(families.rules()) * 0.25


def test_adding_a_file_adds_a_family() -> None:
    folder = Path(families.__file__).parent
    names = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert {"gemm", "embedding", "elementwise", "copy", "index", "optimizer"} <= names


@pytest.mark.parametrize("device", ["v100", "p100", "titan-xp", "a100", "h100", "h200", "t4", "l4"])
def test_every_card_prices_a_step_with_honest_records(device: str) -> None:
    on = machine(device)
    ops = (
        call("aten.mm", tensor("a", 512, 256), tensor("b", 256, 128), out=(512, 128)),
        call("aten.relu", tensor("x", 512, 512), out=(512, 512)),
        call("aten.sum", tensor("x", 2048, 512), out=(1, 512)),
    )
    for op in ops:
        for kernel in kernels(op, on):
            assert 0 < kernel.time < 1e4
            assert kernel.spread > 0
            assert kernel.by in PROVENANCES and kernel.by != "none"
            assert kernel.formula and kernel.name and kernel.family
