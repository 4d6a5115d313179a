"""Gradients in TF32 over few channels that lie last, on Hopper."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from irgraph.ir.op import Op
from irgraph.ir.points.point_values import PointValues
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import kernels, machine, tensor, total

ROWS = {
    (128, 16, 72, 7): 41.7, (128, 48, 48, 112): 1865, (128, 48, 56, 14): 52.2,
    (16, 24, 256, 7): 31.6, (64, 88, 8, 14): 41.6, (64, 960, 40, 14): 268, (32, 8, 320, 14): 95.6,
}  # fmt: skip
"""Microseconds of both gradients, 3 x 3 (batch, channels, made, side), H100 SXM, torch 2.11."""

Sizes = tuple[int, int, int, int]


def _op(sizes: Sizes, dtype: str = "f32") -> Op:
    batch, channels, made, side = sizes

    def image(name: str, width: int) -> Tensor:
        found = tensor(name, batch, width, side, side, dtype=dtype)
        return replace(found, strides=(width * side * side, 1, side * width, width))

    weight = tensor("w", made, channels, 3, 3, dtype=dtype)
    data = image("x", channels)
    made_of = (replace(data, name="gx"), replace(weight, name="gw"))
    return Op("aten.convolution_backward", (image("g", made), data, weight), made_of)


@pytest.mark.parametrize(("sizes", "measured"), list(ROWS.items()))
def test_both_gradients_come_out_within_a_third(sizes: Sizes, measured: float) -> None:
    assert total(kernels(_op(sizes), machine("h100"))) == pytest.approx(measured, rel=0.35)


def test_only_few_channels_in_f32_on_hopper_are_slow() -> None:
    def notes(op: Op, device: str) -> bool:
        return any("few channels" in kernel.formula for kernel in kernels(op, machine(device)))

    assert notes(_op((64, 128, 32, 28)), "h100")
    assert not notes(_op((64, 128, 64, 28)), "h100")
    assert not notes(_op((64, 128, 32, 28), "f16"), "h100")
    assert not notes(_op((64, 128, 32, 28)), "a100")


def test_many_points_take_what_each_takes() -> None:
    batches = [2, 8, 64]
    many = total(kernels(_op((PointValues(np.asarray(batches)), 48, 16, 14)), machine("h100")))  # type: ignore[arg-type]
    assert isinstance(many, PointValues)
    each = [total(kernels(_op((n, 48, 16, 14)), machine("h100"))) for n in batches]
    assert many.values.tolist() == each
