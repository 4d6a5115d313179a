"""Convolutions: which product they are, what a trained model is asked, and their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import pytest
from msgspec.structs import replace

from costmodels.families import rules
from costmodels.formulas.cudnn import PLAIN_CORES
from costmodels.formulas.grouped import slow_time
from costmodels.formulas.machine import Machine, ModelEstimate
from costmodels.formulas.products import product_kernels
from costmodels.formulas.tiles import Product, tiled_time
from irgraph.ir.op import Op, Value
from irgraph.ir.points.point_values import PointValues
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import NEW, OLD, call, kernels, machine, tensor, total
from tests.costmodels.families.worked import FLOOR, PEAK, dram, width

NAME = "aten.convolution"
Shape = tuple[int, ...]


def conv(data: Shape, weight: Shape, out: Shape, *more: Tensor, **attributes: Value) -> Op:
    return call(NAME, tensor("x", *data), tensor("w", *weight), *more, out=out, **attributes)


def product(batch: int, rows: int, columns: int, depth: int, stored: int | None = None) -> float:
    """Return what the implicit product of values that are stored once costs on a V100."""
    found = Product(batch, rows, columns, depth, "f32", "nn", stored)
    return tiled_time(found, machine())[0] + FLOOR


@pytest.mark.parametrize(
    ("data", "weight", "out", "expected"),
    [
        # pixels of the result x output channels x (input channels x window), for each group
        ((32, 64, 56, 56), (128, 64, 3, 3), (32, 128, 28, 28), (1, 32 * 28 * 28, 128, 576)),
        ((32, 64, 56, 56), (128, 16, 3, 3), (32, 128, 56, 56), (4, 32 * 56 * 56, 32, 144)),
        ((8, 256, 64), (512, 256, 5), (8, 512, 64), (1, 8 * 64, 512, 1280)),
        ((8, 1, 64, 64), (256, 1, 5, 5), (8, 256, 64, 64), (1, 8 * 64 * 64, 256, 25)),
    ],
)
def test_a_convolution_is_a_product_for_each_group(
    data: Shape, weight: Shape, out: Shape, expected: tuple[int, int, int, int]
) -> None:
    (found,) = kernels(conv(data, weight, out, dilation=2), machine())
    stored = 4 * sum(prod(shape) for shape in (data, weight, out))
    assert found.time == pytest.approx(product(*expected, stored))
    assert width(found) == 0.5
    assert found.outside == (expected[0] > 1 or len(data) != 4)


@pytest.mark.parametrize("window", [1, 3, 5])
def test_windows_that_overlap_are_read_from_memory_once(window: int) -> None:
    """The image, the weight and the result move once; each window's values come from L2."""
    shapes = ((64, 64, 56, 56), (64, 64, window, window), (64, 64, 56, 56))
    a100 = machine("a100-sxm4-80gb")
    found = next(iter(kernels(half(channels_last(conv(*shapes))), a100)))
    once, windows = (2 * 64 * 64 * 56 * 56 * times for times in (2, 1 + window**2))
    least = once / a100.sheet.bandwidth / 1e3
    assert least < found.time
    assert found.time >= windows / a100.sheet.l2_bandwidth / 1e3
    if window > 1:
        assert found.time < windows / a100.sheet.bandwidth / 1e3


def test_one_output_channel_takes_every_pixel() -> None:
    (found,) = kernels(conv((8, 64, 56, 56), (1, 64, 3, 3), (8, 1, 56, 56)), machine())
    one_row_of_tiles = kernels(conv((8, 64, 56, 56), (32, 64, 3, 3), (8, 32, 56, 56)), machine())
    assert found.time == pytest.approx(one_row_of_tiles[0].time, rel=0.1)
    grouped = conv((8, 256, 56, 56), (4, 64, 3, 3), (8, 4, 56, 56))
    assert total(kernels(grouped, machine())) == pytest.approx(4 * found.time / 0.63, rel=0.3)


def test_a_strided_convolution_reads_the_whole_image() -> None:
    (found,) = kernels(conv((32, 64, 56, 56), (64, 64, 1, 1), (32, 64, 28, 28)), machine())
    moved = 4 * 64 * (32 * 56 * 56 + 64 + 32 * 28 * 28)
    assert found.time == pytest.approx(dram(moved) + FLOOR)


def half(op: Op, dtype: str = "f16") -> Op:
    """Return an op over f16."""

    def cast(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(replace(t, dtype=dtype) if isinstance(t, Tensor) else t for t in values)

    return replace(op, operands=cast(op.operands), results=cast(op.results))


@pytest.mark.parametrize("channels", [256, 512])
def test_a_depthwise_window_of_cudnn_runs_at_a_quarter_of_the_peak(channels: int) -> None:
    op = conv((8, 256, 56, 56), (channels, 1, 5, 5), (8, channels, 56, 56))
    (found,) = kernels(half(channels_last(op)), machine())
    flop = 2 * 8 * channels * 56 * 56 * 25
    assert found.time == pytest.approx(flop / (PEAK / 4) + FLOOR)
    assert found.outside and width(found) == 0.5
    (turned,) = kernels(half(op), machine())
    images = 2 * 8 * (256 + channels) * 56 * 56
    assert turned.time - found.time == pytest.approx(dram(2 * images))


FASTER = {"a100": ((1.23, 3.9), (1.3, 5.8)), "a40": ((1.22, 3.7), (1.23, 4.5))}
"""How many times as fast as torch's kernels cuDNN's are, forward and backward: mean of all shapes,
small ones too, and greatest (torch, pull request 91735; A40 for an RTX A6000, the same chip)."""


@pytest.mark.parametrize("device", FASTER)
@pytest.mark.parametrize("window", [3, 5])
def test_cudnn_gains_on_large_images_more_than_on_average(device: str, window: int) -> None:
    shape = (64, 256, 56, 56)
    forward = conv(shape, (256, 1, window, window), shape)
    operands = (forward.outputs[0], *forward.inputs)
    backward = Op("aten.convolution_backward", operands, forward.inputs)
    for op, (mean, most) in zip((forward, backward), FASTER[device], strict=True):
        own, found = (total(kernels(half(op, t), machine(device))) for t in ("bf16", "f16"))
        assert 0.95 * mean < own / found < most


SIDES = (3, 5, 7, 9, 13, 17, 21, 27, 29, 31)
LATENCIES = {
    16: (5.6, 11.0, 14.4, 17.6, 36.0, 57.2, 83.4, 133.5, 150.7, 171.4),
    32: (21.9, 34.1, 54.8, 76.1, 141.2, 230.5, 342.3, 557.8, 638.6, 734.8),
    64: (69.6, 141.2, 228.6, 319.8, 600.0, 977.7, 1454.4, 2371.1, 2698.4, 3090.4),
}
"""Milliseconds of 24 depthwise layers over [64, 384, R, R] in f32 on an RTX 2080 Ti (Ding et al.,
UniRepLKNet, Table 1, PyTorch 1.9)."""


def test_depthwise_windows_take_what_was_published() -> None:
    errors = []
    for size, times in LATENCIES.items():
        for side, time in zip(SIDES, times, strict=True):
            shape = (64, 384, size, size)
            (found,) = kernels(conv(shape, (384, 1, side, side), shape), machine("rtx-2080-ti"))
            errors.append(24 * found.time / 1e3 / time - 1)
    assert max(map(abs, errors)) < 0.25
    assert sum(map(abs, errors)) / len(errors) < 0.08


def test_the_gradient_of_a_depthwise_weight_goes_over_all_images_for_each_tap() -> None:
    """RTX 3090, long windows over sequences: 14 ms forward, 65 ms backward (torch issue 75747)."""
    shape, window = (32, 768, 768), (768, 1, 767)
    op = conv(shape, window, shape)
    gradient = (tensor("g", *shape), *op.inputs)
    outs = (tensor("dx", *shape), tensor("dw", *window))
    backward = Op("aten.convolution_backward", gradient, outs)
    times = [total(kernels(one, machine("rtx-3090"))) for one in (op, backward)]
    assert times[1] / times[0] == pytest.approx(65 / 14, rel=0.03)


@pytest.mark.parametrize(
    ("channels", "side", "stride", "batch", "window", "cudnn"),
    [
        (64, 56, 1, 8, 3, True),
        (64, 56, 2, 8, 3, False),
        (512, 14, 2, 8, 3, True),
        (256, 28, 2, 8, 5, True),
        (256, 14, 2, 8, 5, False),
        (64, 56, 2, 1, 3, True),
        (64, 6, 1, 8, 3, False),
        (512, 57, 3, 8, 3, False),
        (128, 7, 2, 16, 1, True),
        (128, 14, 2, 16, 1, False),
        (32, 28, 2, 1, 1, True),
        (32, 56, 2, 1, 1, False),
    ],
)
def test_strides_and_sizes_decide_who_runs_a_depthwise_window_in_f16(
    channels: int, side: int, stride: int, batch: int, window: int, cudnn: bool
) -> None:
    """As ``check_cudnn_depthwise_workload_with_filter`` of torch 2.6 has them."""
    made = side // stride
    op = conv(
        (batch, channels, side, side), (channels, 1, window, window), (batch, channels, made, made)
    )
    assert ("instructions" in kernels(half(op), machine())[0].formula) != cudnn
    dilated = replace(half(op), attributes={"dilation": (2, 2)})
    assert "instructions" in kernels(dilated, machine())[0].formula


@pytest.mark.parametrize("change", ["f32", "bf16", "few channels", "wide", "channels last"])
def test_torch_asks_cudnn_for_some_depthwise_windows(change: str) -> None:
    channels, side = (16 if change == "few channels" else 64), (7 if change == "wide" else 3)
    dtype = change if change in ("f32", "bf16") else "f16"
    op = conv((8, channels, 56, 56), (channels, 1, side, side), (8, channels, 56, 56))
    data, weight = (replace(t, dtype=dtype) for t in op.inputs)
    if change == "channels last":
        data = replace(data, strides=(56 * 56 * channels, 1, 56 * channels, channels))
    (found,) = kernels(replace(op, operands=(data, weight)), machine())
    assert ("instructions" in found.formula) == (change != "channels last")


def test_convolutions_of_f32_run_in_tf32_where_torch_does() -> None:
    on = machine("a100")
    op = conv((32, 256, 56, 56), (256, 256, 3, 3), (32, 256, 56, 56))
    half = replace(op, operands=tuple(replace(t, dtype="f16") for t in op.inputs))
    for one, dtype in ((op, "tf32"), (half, "f16")):
        sizes = Product(1, 32 * 56 * 56, 256, 2304, dtype, "nn")
        found = kernels(channels_last(one), on)
        assert total(found) == pytest.approx(total(product_kernels(sizes, on)))


def channels_last(op: Op) -> Op:
    """Return a convolution of images whose channels are last."""

    def last(t: Tensor) -> Tensor:
        _, channels, high, wide = map(int, t.shape)
        return replace(t, strides=(channels * high * wide, 1, wide * channels, channels))

    return replace(op, operands=tuple(map(last, op.inputs)), results=tuple(map(last, op.outputs)))


ONE_IMAGE, WEIGHT = 41.0, 72.0
"""Microseconds of cuDNN's ``nchwToNhwcKernel`` over [32, 64, 56, 56] and over a weight of
[512, 512, 3, 3] in f32 on an A100: a public Kineto trace of ResNet-50 in TF32, medians."""

TURNS = [
    (((32, 64, 56, 56), (64, 64, 3, 3), (32, 64, 56, 56)), 1.5 * ONE_IMAGE, 2 * ONE_IMAGE,
     2 * ONE_IMAGE),
    (((32, 512, 7, 7), (512, 512, 3, 3), (32, 512, 7, 7)), WEIGHT + 0.1875 * ONE_IMAGE,
     WEIGHT + 0.25 * ONE_IMAGE, WEIGHT / 2 + 0.25 * ONE_IMAGE),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "forward", "of_data", "of_weight"), TURNS)
def test_images_and_weights_are_turned_as_fast_as_was_traced(
    sizes: tuple[tuple[int, ...], ...], forward: float, of_data: float, of_weight: float
) -> None:
    on, op = machine("a100"), conv(*sizes)
    gradients = [
        replace(
            op,
            name="aten.convolution_backward",
            results=(made,),
            operands=(op.outputs[0], *op.inputs),
        )
        for made in op.inputs
    ]
    for one, traced in zip((op, *gradients), (forward, of_data, of_weight), strict=True):
        kept = total(kernels(channels_last(one), on))
        assert total(kernels(one, on)) - kept == pytest.approx(traced, rel=0.2)


@pytest.mark.parametrize("change", ["plain cores", "one element", "three channels", "depthwise"])
def test_some_convolutions_are_not_turned(change: str) -> None:
    window = 1 if change == "one element" else 3
    channels = 3 if change == "three channels" else 64
    inner = 1 if change == "depthwise" else channels
    op = conv((8, channels, 56, 56), (64, inner, window, window), (8, 64, 56, 56))
    on = machine("p100" if change == "plain cores" else "a100")
    assert not [kernel for kernel in kernels(op, on) if "turn" in kernel.name]


def test_some_gradients_of_plain_products_turn_both_images() -> None:
    """Of 33 such weight gradients 11 (f32) and 17 (f16) were turned in traced ResNet-50 steps."""
    op = conv((32, 64, 56, 56), (64, 64, 1, 1), (32, 64, 56, 56))
    operands = (op.outputs[0], *op.inputs)
    gradient = Op("aten.convolution_backward", operands, (None, op.inputs[1]))
    turn = kernels(gradient, machine("a100"))[1]
    assert 11 / 33 * 2 * ONE_IMAGE < turn.time < 17 / 33 * 2 * ONE_IMAGE


@pytest.mark.parametrize(("channels", "turned"), [(64, True), (32, False)])
def test_older_libraries_turn_images_of_plain_products_too(channels: int, turned: bool) -> None:
    op = conv((8, channels, 56, 56), (128, channels, 1, 1), (8, 128, 56, 56))
    op = replace(op, operands=tuple(replace(t, dtype="f16") for t in op.inputs))
    names = [[k.name for k in kernels(op, machine("rtx-3090", era))] for era in (OLD, NEW)]
    assert [any("turn" in name for name in found) for found in names] == [turned, False]


TRACED = {
    # window, strided: convolutions, microseconds forward, of data and of weights
    (1, False): (33, 12471, 12386, 13495), (1, True): (3, 1965, 2629, 1998),
    (3, False): (13, 4048, 3985, 5364), (3, True): (3, 2037, 2850, 1905),
}  # fmt: skip
"""ResNet-50 in f32 on a V100 (batch 32), a public Kineto trace: sums of cuDNN's convolutions."""


@pytest.mark.parametrize(("window", "strided"), TRACED)
def test_convolutions_in_f32_take_what_was_traced(window: int, strided: bool) -> None:
    number, *measured = TRACED[window, strided]
    sums = [0.0, 0.0, 0.0]
    found = [c for c in RESNET_50 if (c[2], c[3] != c[4]) == (window, strided)]
    assert len(found) == number
    for inner, outer, _, side, made in found:
        shapes = (32, inner, side, side), (outer, inner, window, window), (32, outer, made, made)
        op = conv(*shapes)
        data, weight, grad = *op.inputs, op.outputs[0]
        for place, one in enumerate((data, weight)):
            outs = (one, None) if place == 0 else (None, one)
            back = Op(f"{NAME}_backward", (grad, data, weight), outs)
            sums[place + 1] += total(kernels(back, machine("v100")))
        sums[0] += total(kernels(op, machine("v100")))
    assert sums == pytest.approx(measured, rel=0.3 if window == 1 or not strided else 0.4)


def resnet_50() -> list[tuple[int, int, int, int, int]]:
    """Return its convolutions but the first: channels in and out, window, side before and after."""
    found, inner = [], 64
    for planes, blocks, side, stride in (
        (64, 3, 56, 1),
        (128, 4, 28, 2),
        (256, 6, 14, 2),
        (512, 3, 7, 2),
    ):
        for block in range(blocks):
            before = side * stride if block == 0 else side
            found += [
                (inner, planes, 1, before, before),
                (planes, planes, 3, before, side),
                (planes, 4 * planes, 1, side, side),
            ]
            found += [(inner, 4 * planes, 1, before, side)] if block == 0 else []
            inner = 4 * planes
    return found


RESNET_50 = resnet_50()


def test_a_bias_is_added_by_a_kernel_of_its_own() -> None:
    plain = ((8, 64, 56, 56), (64, 64, 3, 3), (8, 64, 56, 56))
    without = kernels(conv(*plain), machine())
    first, second = kernels(conv(*plain, tensor("c", 64)), machine())
    assert (first,) == without
    assert second.time == pytest.approx(dram(2 * 4 * 8 * 64 * 56 * 56) + FLOOR)
    assert width(second) == 0.2


def test_what_is_no_convolution_or_was_recorded_down_to_its_kernel_is_left_alone() -> None:
    op = conv((8, 64, 56, 56), (64, 64, 3, 3), (8, 64, 56, 56))
    inner = replace(op, name="aten.cudnn_convolution")
    flat = replace(op, operands=(op.inputs[0], tensor("w", 64, 64)))
    for unknown in (
        replace(op, operands=op.operands[:1]),
        replace(op, results=()),
        replace(op, body=(inner,)),
        flat,
    ):
        assert rules()[NAME](unknown, machine()) is None
    empty = Op("aten.empty", (), (tensor("e", 8),))
    noted = Op("annotation.step", (tensor("z", 8),), ())
    assert kernels(replace(op, body=(empty, noted)), machine()) == kernels(op, machine())


SAME: tuple[Shape, Shape, Shape] = ((32, 64, 56, 56), (128, 64, 3, 3), (32, 128, 56, 56))


def _asked(op: Op) -> list[Mapping[str, float | str]]:
    """Return what a trained model is asked as an op is priced."""
    asked: list[Mapping[str, float | str]] = []

    def model(sizes: Mapping[str, float | str]) -> ModelEstimate:
        asked.append(sizes)
        return ModelEstimate(42.0, 1.0)

    base = machine()
    first = kernels(op, Machine(base.sheet, base.software, learned={"conv2d": model}))[0]
    assert (first.by == "learned") == bool(asked)
    return asked


@pytest.mark.parametrize("attributes", [{}, {"dilation": 1}, {"dilation": (1, 1)}])
def test_a_trained_model_is_asked_about_dense_3_x_3_windows(attributes: dict[str, Value]) -> None:
    assert _asked(conv(*SAME, **attributes)) == [
        {
            "dtype": "f32",
            "batch": 32,
            "in_channels": 64,
            "out_channels": 128,
            "input_size": 56,
            "kernel_size": 3,
            "stride": 1,
            "padding": 1,
        }
    ]


@pytest.mark.parametrize(
    ("data", "weight", "out", "attributes"),
    [
        ((32, 64, 56, 28), (128, 64, 3, 3), (32, 128, 56, 28), {}),  # no square
        ((32, 64, 1, 1), (128, 64, 3, 3), (32, 128, 1, 1), {}),  # one pixel
        ((32, 64, 56, 56), (128, 64, 3, 3), (32, 128, 28, 28), {}),  # strided
        ((32, 64, 56, 56), (128, 64, 3, 3), (32, 128, 28, 56), {}),
        ((32, 64, 56, 56), (128, 64, 1, 1), (32, 128, 56, 56), {}),
        ((32, 64, 56, 56), (128, 64, 3, 1), (32, 128, 56, 56), {}),
        ((32, 64, 56, 56), (128, 32, 3, 3), (32, 128, 56, 56), {}),  # two groups
        ((32, 64, 56), (128, 64, 3), (32, 128, 56), {}),
        ((32, 8, 16, 16, 16), (8, 8, 3, 3, 3), (32, 8, 16, 16, 16), {}),
        (*SAME, {"dilation": 2}),
        (*SAME, {"dilation": (1, 2)}),
        (*SAME, {"transposed": True}),
    ],
)
def test_a_trained_model_is_not_asked_about_others(
    data: Shape, weight: Shape, out: Shape, attributes: dict[str, Value]
) -> None:
    assert _asked(conv(data, weight, out, **attributes)) == []


STRIDED = (tensor("x", 8, 64, 56, 56), tensor("w", 128, 64, 3, 3), tensor("g", 8, 128, 28, 28))


@pytest.mark.parametrize("axes", [1, 2])
def test_each_gradient_is_a_product_as_large_as_the_forward_one(axes: int) -> None:
    data, weight, grad = (replace(t, shape=t.shape[: 2 + axes]) for t in STRIDED)
    forward = total(kernels(Op(NAME, (data, weight), (grad,)), machine()))
    bias = tensor("gc", 128)
    op = Op(f"{NAME}_backward", (grad, data, weight), (data, weight, bias))
    of_data, of_weight, of_bias = kernels(op, machine())
    shares = PLAIN_CORES["strided"] if axes == 2 else (1.0, 1.0, 1.0)
    for found, share in ((of_data, shares[1]), (of_weight, shares[2])):
        assert found.time - FLOOR == pytest.approx((forward - FLOOR) * share / shares[0])
    assert "data gradient" in of_data.name and "weight gradient" in of_weight.name
    assert of_bias.time == pytest.approx(dram(4 * grad.numel) + FLOOR)
    assert width(of_bias) == 0.3
    only = replace(op, results=(None, weight, None))
    assert kernels(only, machine()) == (of_weight,)
    recorded_without_results = replace(op, results=())
    assert kernels(recorded_without_results, machine()) == (of_data, of_weight)
    assert rules()[op.name](replace(op, operands=op.operands[:2]), machine()) is None
    with_sizes = replace(op, operands=(*op.operands, (128,), False))
    assert kernels(with_sizes, machine()) == (of_data, of_weight, of_bias)


def test_older_releases_name_the_data_before_its_gradient() -> None:
    data, weight, grad = STRIDED
    new = Op(f"{NAME}_backward", (grad, data, weight), (data, weight))
    old = Op("aten.cudnn_convolution_backward", (data, grad, weight), (data, weight))
    assert kernels(old, machine()) == kernels(new, machine())


@pytest.mark.parametrize(
    ("base", "attributes"),
    [("convolution", {"transposed": True}), ("cudnn_convolution_transpose", {})],
)
def test_a_transposed_convolution_is_the_data_gradient_of_one(
    base: str, attributes: dict[str, Value]
) -> None:
    data, weight, grad = STRIDED
    both = Op(f"{NAME}_backward", (grad, data, weight), (data, None, None))
    plain = kernels(both, machine())
    up = Op(f"aten.{base}", (grad, weight), (data,), attributes)
    assert total(kernels(up, machine())) == pytest.approx(total(plain))
    (found,) = kernels(replace(up, results=(data,)), machine())
    assert found.name.startswith("transposed conv 8x64x56x56")


def test_gradients_of_a_transposed_convolution_are_those_of_one() -> None:
    data, weight, grad = STRIDED
    plain = kernels(Op(f"{NAME}_backward", (grad, data, weight), (data, weight)), machine())
    up = Op(f"{NAME}_backward", (data, grad, weight), (grad, weight), {"transposed": True})
    assert total(kernels(up, machine())) == pytest.approx(total(plain))


@pytest.mark.parametrize("name", ["relu", "add", "_to_copy", "clone"])
def test_channels_last_costs_other_kernels_nothing(name: str) -> None:
    shape = (32, 64, 56, 56)
    out = tensor("y", *shape, dtype="f16" if name == "_to_copy" else "f32")
    given = [tensor("a", *shape), tensor("b", *shape)][: 2 if name == "add" else 1]
    op = Op(f"aten.{name}", tuple(given), (out,))
    last = channels_last(op)
    assert total(kernels(last, machine())) == total(kernels(op, machine()))
    crossed = replace(op, operands=(last.operands[0], *op.operands[1:]))
    if name in ("_to_copy", "clone"):
        assert total(kernels(crossed, machine())) > total(kernels(op, machine()))


def grouped(width: int, groups: int, *, backward: bool = True) -> Op:
    """Return a grouped 3 x 3 convolution in f16 with channels last, or its gradients."""
    image, weight = (64, width * groups, 28, 28), (width * groups, width, 3, 3)
    data, window = tensor("data", *image), tensor("weight", *weight)
    if not backward:
        op = Op("aten.convolution", (data, window, None), (tensor("out", *image),))
        return half(channels_last(op))
    made = tensor("d_data", *image), tensor("d_weight", *weight)
    return half(channels_last(Op("aten.convolution_backward", (made[0], data, window), made)))


@pytest.mark.parametrize(("width", "groups", "slow"), [(32, 8, 9), (64, 32, 9), (16, 32, 0)])
def test_gradients_of_groups_with_channels_last_fall_off_a_cliff_in_cudnn_8(
    width: int, groups: int, slow: int
) -> None:
    op = grouped(width, groups)
    old, new = (
        kernels(op, machine("rtx-3090", software)) for software in ("torch-1.12-cuda-11.3", NEW)
    )
    times = [sum(k.time for k in found) for found in (old, new)]
    assert times[0] >= max(slow, 1) * times[1]
    assert times[0] <= max(3 * slow, 1) * times[1]
    # newer software: the same price as ever, but it may be many times as long, and says so
    named = all("channels last" in k.formula for k in (*old, *new))
    assert named == bool(slow)
    assert all(k.outside for k in (*old, *new))


def test_forward_passes_of_groups_are_slow_where_their_channels_are_no_power_of_two() -> None:
    on = machine("rtx-3090", "torch-1.12-cuda-11.3")
    wide, even = (total(kernels(grouped(w, 8, backward=False), on)) for w in (112, 128))
    assert wide > 4 * even


@pytest.mark.parametrize("width", [3, 6, 12])
def test_slow_kernels_of_narrow_groups_move_their_bytes_too(width: int) -> None:
    op = grouped(width, 32, backward=False)
    on = machine("rtx-3090", "torch-1.12-cuda-11.3")
    moved = sum(t.numel * 2 for t in (*op.inputs, *op.outputs))
    assert total(kernels(op, on)) >= moved / on.sheet.dram_gbs.datasheet / 1e3


@pytest.mark.parametrize(("card", "backward"), [("v100", True), ("mi300x", True), ("a100", False)])
def test_no_cliff_is_told_where_none_was_seen(card: str, backward: bool) -> None:
    found = kernels(grouped(32, 8, backward=backward), machine(card))
    assert not any("channels last" in kernel.formula for kernel in found)


def test_slow_kernels_are_priced_at_many_sizes_at_once() -> None:
    on = machine("rtx-3090", "torch-1.12-cuda-11.3")
    data, weight = channels_last(grouped(32, 8, backward=False)).inputs[:2]
    sizes = (8, 64)
    result = replace(data, shape=(PointValues(np.array(sizes)), *data.shape[1:]))
    many = slow_time(data, weight, result, "conv data gradient", on)
    for at, size in enumerate(sizes):
        one = replace(data, shape=(size, *data.shape[1:]))
        assert many.values[at] == slow_time(data, weight, one, "conv data gradient", on)
