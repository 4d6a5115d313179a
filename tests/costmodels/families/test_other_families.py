"""Convolutions, norms, softmax, transposes, views; and what every family must keep to."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import costmodels.families as families
from costmodels.formulas.blocks.image_norms import CACHED_FORMULA
from costmodels.formulas.machine import Machine, ModelEstimate
from irgraph.ir.cost import PROVENANCES
from irgraph.ir.op import Op
from irgraph.ir.schema import schemas_of
from tests.costmodels.families.helpers import call, kernels, machine, tensor, total


def test_a_convolution_is_an_implicit_product() -> None:
    op = call(
        "aten.convolution",
        tensor("x", 32, 64, 56, 56),
        tensor("w", 64, 64, 5, 5),
        out=(32, 64, 56, 56),
    )
    flops = 2 * 32 * 56 * 56 * 64 * 64 * 25
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


TRACED = [
    # (device, type), channels, side, batch, microseconds forward and backward
    (("a100", "f32"), 64, 112, 32, 386.1, 803.7),
    (("a100", "f32"), 64, 56, 32, 99.1, 206.9),
    (("a100", "f32"), 128, 56, 32, 146.7, 271.0),
    (("a100", "f32"), 256, 56, 32, 248.1, 421.0),
    (("a100", "f16"), 64, 112, 128, 2124.0, 2938.0),
    (("v100", "f32"), 64, 112, 32, 450.0, 914.0),
    (("v100", "f32"), 512, 28, 32, 210.2, 347.6),
    (("rtx-2080-ti", "f32"), 64, 56, 128, 668.5, 1066.2),
    (("rtx-2080-ti", "f32"), 256, 14, 128, 168.6, 244.2),
]
"""cuDNN's batch norm in public traces and profiles of ResNets: medians of a shape's layers."""


@pytest.mark.parametrize(("on", "channels", "side", "batch", "forward", "backward"), TRACED)
def test_batch_norm_takes_what_was_traced(
    on: tuple[str, str], channels: int, side: int, batch: int, forward: float, backward: float
) -> None:
    device, dtype = on
    data = tensor("x", batch, channels, side, side, dtype=dtype)
    for name, measured in (("", forward), ("_backward", backward)):
        op = Op(f"aten.native_batch_norm{name}", (data, data), (data,))
        assert total(kernels(op, machine(device))) == pytest.approx(measured, rel=0.35)


KEPT = [
    # device, channels, side, batch, microseconds forward and backward, where channels are kept
    ("v100", 512, 7, 32, 19.3, 19.1),
    ("v100", 1024, 14, 32, 86.6, None),
    ("v100", 2048, 7, 32, 56.2, 71.8),
    ("rtx-2080-ti", 512, 7, 128, 62.9, None),
    ("a100", 1024, 14, 32, 52.2, None),
    ("a100", 2048, 7, 32, 35.3, 60.3),
]
"""cuDNN's ``1C11_singleread`` kernels in f32, in the public traces of ResNets."""


@pytest.mark.parametrize(("device", "channels", "side", "batch", "forward", "backward"), KEPT)
def test_channels_that_fit_into_shared_memory_move_once(
    device: str, channels: int, side: int, batch: int, forward: float, backward: float | None
) -> None:
    data = tensor("x", batch, channels, side, side)
    on = machine(device, "torch-1.12-cuda-11.3")
    for name, measured in (("", forward), ("_backward", backward)):
        (kernel,) = kernels(Op(f"aten.native_batch_norm{name}", (data, data), (data,)), on)
        assert (kernel.formula == CACHED_FORMULA) == (measured is not None)
        assert measured is None or kernel.time == pytest.approx(measured, rel=0.3)


def test_newer_kernels_keep_more_and_move_pairs() -> None:
    """By half of the shared memory of an H100, 114 KB; 16 bits in pairs, where they fall in two."""
    new, old = machine("h100"), machine("h100", "torch-2.7")

    def kept(side: int, batch: int, dtype: str, on: Machine, backward: str = "") -> float:
        data = tensor("x", batch, 120, side, side, dtype=dtype)
        (kernel,) = kernels(Op(f"aten.native_batch_norm{backward}", (data, data), (data,)), on)
        return kernel.time if kernel.formula == CACHED_FORMULA else 0.0

    assert kept(28, 64, "f16", new) and not kept(28, 64, "f16", old)
    assert not kept(28, 64, "f16", new, "_backward") and not kept(28, 64, "f32", new)
    odd, even = kept(27, 64, "f16", new), kept(28, 64, "f16", new)
    assert odd > 1.5 * even
    assert not kept(28, 64, "bf16", new)


def test_few_channels_leave_multiprocessors_idle_unless_they_are_last() -> None:
    shape = (128, 16, 112, 112)
    data = tensor("x", *shape, dtype="f16")
    last = replace(data, strides=(16 * 112 * 112, 1, 16 * 112, 16))
    found = {
        times: total(kernels(Op("aten.native_batch_norm", (one,), (one,)), machine("a100")))
        for times, one in (("first", data), ("last", last))
    }
    # 16 blocks side by side, each faster than one of 64
    one_block = 3 * 128 * 112 * 112 / (1.75 * (64 / 16) ** 0.42) / 1410
    assert found["first"] == pytest.approx(one_block + 2.7)
    assert found["last"] < found["first"] / 3


def test_given_statistics_take_one_pass_over_the_data() -> None:
    data = tensor("x", 32, 256, 32, 32)
    found = [
        total(kernels(Op("aten.native_batch_norm", (data,), (data,), {"training": on}), machine()))
        for on in (False, True)
    ]
    assert (found[1] - 2.7) / (found[0] - 2.7) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("device", "dtype", "batch", "last", "forward", "backward"),
    [
        ("a100", "f32", 32, False, 165.7, 598.9),
        ("v100", "f32", 32, False, 237.0, 637.0),
        ("rtx-2080-ti", "f32", 128, False, 1332.0, 3942.0),
        ("a100", "f16", 128, False, 652.0, 2280.0),
        ("a100", "f16", 128, True, 769.6, 1455.0),
    ],
)
def test_maxima_take_what_was_traced(
    device: str, dtype: str, batch: int, last: bool, forward: float, backward: float
) -> None:
    """The first pool of traced and profiled ResNets: 3 x 3 with stride 2 over 112 x 112."""
    image, small = (tensor(n, batch, 64, s, s, dtype=dtype) for n, s in (("x", 112), ("y", 56)))
    if last:
        image = replace(image, strides=(64 * 112 * 112, 1, 64 * 112, 64))
    name, kept = "aten.max_pool2d_with_indices", replace(small, dtype="i64")
    down = Op(name, (image,), (small, kept), {"kernel_size": (3, 3)})
    up = Op(f"{name}_backward", (small, image, kept), (image,))
    for op, measured in ((down, forward), (up, backward)):
        assert total(kernels(op, machine(device))) == pytest.approx(measured, rel=0.25)
    assert total(kernels(replace(down, results=()), machine(device))) > 0  # as a trace has it


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
    on = Machine(base.sheet, base.software, learned={family: lambda sizes: ModelEstimate(7.0, 0.5)})
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
