"""Depthwise convolutions on Hopper: torch's kernels by block, cuDNN's by tap and byte."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from irgraph.ir.op import Op
from irgraph.ir.points.point_values import PointValues
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import kernels, machine, tensor, total

FORWARD = {
    ("f32", 128, 192, 28, 7, False): 656, ("f32", 5, 983, 70, 3, False): 235,
    ("f32", 64, 32, 56, 1, False): 49.4, ("f32", 3, 786, 69, 4, False): 231,
    ("f16", 64, 256, 56, 3, True): 102, ("f32", 32, 832, 28, 5, True): 147,
    ("f32", 64, 256, 14, 7, True): 67, ("f16", 16, 32, 7, 7, True): 8.1,
}  # fmt: skip
BACKWARD = {
    ("f32", 16, 960, 14, 3, False): 113, ("f32", 128, 96, 28, 7, False): 1089,
    ("f32", 128, 32, 14, 3, False): 41, ("f32", 64, 56, 112, 5, False): 2463,
    ("f16", 128, 8, 112, 1, False): 1087, ("f16", 32, 88, 14, 7, False): 90,
    ("f16", 32, 32, 56, 3, False): 70, ("f16", 64, 128, 28, 3, False): 74,
    ("f16", 16, 256, 56, 1, True): 66, ("f16", 32, 256, 14, 1, True): 13,
    ("f32", 128, 32, 56, 3, True): 94, ("f32", 32, 512, 112, 3, True): 1298,
    ("f32", 16, 128, 112, 7, True): 6493,
}  # fmt: skip
"""Microseconds (type, batch, channels, side, window, channels last), H100 SXM, torch 2.11."""

Sizes = tuple[str, int, int, int, int, bool]


def _last(image: Tensor) -> Tensor:
    _, channels, side, _ = image.shape
    return replace(image, strides=(channels * side * side, 1, side * channels, channels))


def _forward(sizes: Sizes, stride: int = 1) -> Op:
    dtype, batch, channels, side, window, last = sizes
    out = (side + 2 * (window // 2) - window) // stride + 1
    data = tensor("x", batch, channels, side, side, dtype=dtype)
    weight = tensor("w", channels, 1, window, window, dtype=dtype)
    made = Tensor("y", dtype, (batch, channels, out, out), "b_y", device="gpu0")
    if last:
        data, made = _last(data), _last(made)
    return Op("aten.convolution", (data, weight), (made,), {"groups": channels})


def _backward(sizes: Sizes, stride: int = 1, which: tuple[str, ...] = ("x", "w")) -> Op:
    forward = _forward(sizes, stride)
    data, weight = forward.inputs
    made = [replace(t, name=f"g{t.name}") for t in (data, weight) if t.name in which]
    gradient = replace(forward.outputs[0], name="g")
    return Op("aten.convolution_backward", (gradient, data, weight), tuple(made))


@pytest.mark.parametrize(("sizes", "measured"), list(FORWARD.items()))
def test_forward_comes_out_within_a_sixth(sizes: Sizes, measured: float) -> None:
    assert total(kernels(_forward(sizes), machine("h100"))) == pytest.approx(measured, rel=0.17)


@pytest.mark.parametrize(("sizes", "measured"), list(BACKWARD.items()))
def test_gradients_come_out_within_a_quarter(sizes: Sizes, measured: float) -> None:
    assert total(kernels(_backward(sizes), machine("h100"))) == pytest.approx(measured, rel=0.25)


def _weights(*sizes: int, dtype: str = "f32", last: bool = False) -> float:
    batch, channels, side, window = sizes
    op = _backward((dtype, batch, channels, side, window, last), which=("w",))
    return total(kernels(op, machine("h100")))


def test_few_channels_leave_multiprocessors_idle() -> None:
    """A block for each weight: 16 times as many take hardly longer, then time is in proportion."""
    assert _weights(128, 128, 112, 1) < 1.2 * _weights(128, 8, 112, 1)
    assert _weights(128, 256, 56, 7) == pytest.approx(2 * _weights(128, 128, 56, 7), rel=0.1)


def test_wide_f32_windows_with_channels_last_have_no_kernel_of_their_own() -> None:
    assert _weights(64, 96, 56, 7, last=True) > 10 * _weights(64, 96, 56, 5, last=True)
    narrow = _weights(64, 96, 56, 7, dtype="f16", last=True)
    assert _weights(64, 96, 56, 7, last=True) > 8 * narrow


def test_strided_gradients_walk_all_taps_and_say_how_little_is_known() -> None:
    sizes: Sizes = ("f16", 64, 144, 56, 5, True)
    (strided,) = kernels(_backward(sizes, 2, which=("x",)), machine("h100"))
    (plain,) = kernels(_backward(sizes, which=("x",)), machine("h100"))
    assert plain.time < strided.time
    assert strided.spread > 0.9 * strided.time and plain.spread < 0.6 * plain.time


def test_other_cards_and_printed_formulas_keep_their_own() -> None:
    op = _forward(("f32", 8, 64, 56, 3, False))
    notes = [kernels(op, on)[0].formula for on in (machine("a100"), machine("h100", mode="paper"))]
    assert not any("H100" in note for note in notes)
    assert "H100" in kernels(op, machine("h100"))[0].formula


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("window", [1, 3, 7])
@pytest.mark.parametrize("last", [False, True])
def test_many_points_take_what_each_takes(dtype: str, window: int, last: bool) -> None:
    batches = [2, 8, 64, 640]
    on = machine("h100")
    for made in (_forward, _backward):
        many = total(
            kernels(made((dtype, PointValues(np.asarray(batches)), 24, 14, window, last)), on)
        )  # type: ignore[arg-type]
        assert isinstance(many, PointValues)
        each = [total(kernels(made((dtype, n, 24, 14, window, last)), on)) for n in batches]
        assert many.values.tolist() == each
