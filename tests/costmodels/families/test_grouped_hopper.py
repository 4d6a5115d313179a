"""Grouped convolutions on Hopper for which cuDNN has no kernel of their own."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from irgraph.ir.op import Op
from irgraph.ir.points.point_values import PointValues
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import kernels, machine, tensor, total

FORWARD = {
    ("f16", 128, 16, 8, 112, 3): 517, ("f16", 64, 48, 40, 7, 1): 33,
    ("f32", 64, 88, 104, 28, 3): 185, ("f32", 64, 24, 8, 56, 1): 64,
    ("f32", 32, 576, 8, 56, 3): 843,
}  # fmt: skip
BACKWARD = {
    ("f16", 16, 384, 8, 56, 3): 877, ("f16", 64, 576, 640, 14, 3): 598,
    ("f16", 32, 8, 192, 56, 3): 776, ("f32", 32, 96, 96, 28, 3): 249,
    ("f32", 128, 96, 8, 14, 3): 228, ("f32", 16, 704, 128, 112, 1): 2596,
}  # fmt: skip
"""Microseconds with channels last (type, batch, channels, made channels, side, window), of four
groups; H100 SXM, torch 2.11."""

FIRST = {("f32", 64, 48, 40, 28, 3): 300, ("f32", 128, 320, 320, 112, 3): 59882,
         ("f32", 32, 128, 192, 14, 1): 418}  # fmt: skip
"""Gradients of channels-first images."""

Sizes = tuple[str, int, int, int, int, int]


def _last(image: Tensor) -> Tensor:
    _, channels, side, _ = image.shape
    return replace(image, strides=(channels * side * side, 1, side * channels, channels))


def _op(sizes: Sizes, *, gradient: bool, last: bool = True, groups: int = 4) -> Op:
    dtype, batch, channels, made, side, window = sizes
    data = tensor("x", batch, channels, side, side, dtype=dtype)
    weight = tensor("w", made, channels // groups, window, window, dtype=dtype)
    result = Tensor("y", dtype, (batch, made, side, side), "b_y", device="gpu0")
    if last:
        data, result = _last(data), _last(result)
    if not gradient:
        return Op("aten.convolution", (data, weight), (result,))
    made_of = (replace(data, name="gx"), replace(weight, name="gw"))
    return Op("aten.convolution_backward", (replace(result, name="g"), data, weight), made_of)


@pytest.mark.parametrize("gradient", [False, True])
def test_those_with_channels_last_come_out_within_a_factor_of_two(gradient: bool) -> None:
    """And by less than half on average; they were priced at a tenth to a third."""
    errors = []
    for sizes, measured in (BACKWARD if gradient else FORWARD).items():
        found = total(kernels(_op(sizes, gradient=gradient), machine("h100")))
        assert measured / 2.2 < found < 2.2 * measured
        errors.append(abs(found / measured - 1))
    assert np.mean(errors) < 0.45


@pytest.mark.parametrize(("sizes", "measured"), list(FIRST.items()))
def test_f32_gradients_of_channels_first_images(sizes: Sizes, measured: float) -> None:
    found = total(kernels(_op(sizes, gradient=True, last=False), machine("h100")))
    assert found == pytest.approx(measured, rel=0.35)


def test_fast_groups_and_other_cards_keep_their_formulas() -> None:
    """32 groups of eight channels have fast kernels; 16 groups of 16 have none."""

    def notes(op: Op, device: str) -> bool:
        return any("sliced by group" in kernel.formula for kernel in kernels(op, machine(device)))

    sizes: Sizes = ("f16", 32, 256, 256, 28, 3)
    assert not notes(_op(sizes, gradient=True, groups=32), "h100")
    assert notes(_op(sizes, gradient=True, groups=16), "h100")
    assert not notes(_op(sizes, gradient=True, groups=16), "a100")
    (found, *_) = kernels(_op(sizes, gradient=False, groups=16), machine("h100"))
    assert found.outside and found.spread > found.time


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_many_points_take_what_each_takes(gradient: bool, last: bool) -> None:
    batches = [2, 8, 64]

    def time(batch: int) -> float:
        op = _op(("f32", batch, 24, 48, 14, 3), gradient=gradient, last=last)
        return total(kernels(op, machine("h100")))

    many = time(PointValues(np.asarray(batches)))  # type: ignore[arg-type]
    assert isinstance(many, PointValues)
    assert many.values.tolist() == [time(batch) for batch in batches]
