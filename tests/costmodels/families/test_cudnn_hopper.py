"""Convolutions of channels-first images on Hopper, whose channels cuDNN pads or joins."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from costmodels.families import rules
from costmodels.formulas.machine import Machine
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import PointValues
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import kernels, machine, tensor, total

ROWS = {
    ("f16", 31, 111, 71, 35, 4): 72, ("f16", 10, 430, 12, 41, 3): 67,
    ("f16", 39, 37, 401, 17, 4): 65, ("f16", 36, 339, 11, 77, 2): 414,
    ("f32", 36, 602, 323, 33, 3): 746, ("f32", 16, 92, 407, 49, 2): 150,
    ("f16", 34, 41, 438, 117, 1): 397, ("f16", 23, 365, 74, 26, 1): 29,
}  # fmt: skip
"""Microseconds of convolutions (type, batch, channels, made channels, side, window), H100 SXM."""


def _conv(
    dtype: str, batch: int, channels: int, made: int, side: int, window: int, groups: int = 1
) -> Op:
    out = side + 2 * (window // 2) - window + 1
    data = tensor("x", batch, channels, side, side, dtype=dtype)
    weight = tensor("w", made, channels // groups, window, window, dtype=dtype)
    result = Tensor("y", dtype, (batch, made, out, out), "b_y", device="gpu0")
    return Op("aten.convolution", (data, weight), (result,), {"groups": groups})


@pytest.mark.parametrize(("sizes", "measured"), list(ROWS.items()))
def test_odd_channels_come_out_within_a_third(
    sizes: tuple[str, int, int, int, int, int], measured: float
) -> None:
    assert total(kernels(_conv(*sizes), machine("h100"))) == pytest.approx(measured, rel=0.33)


@pytest.mark.parametrize(
    ("channels", "side", "measured"), [(336, 14, 58.4), (120, 28, 77.1), (888, 7, 53.0)]
)
def test_groups_of_24_channels_take_as_long_as_in_a_traced_regnet(
    channels: int, side: int, measured: float
) -> None:
    """RegNet-Y 1.6 GF in f16, batch 64; gradients of data and weight took 2.2 times as long."""
    op = _conv("f16", 64, channels, channels, side, 3, channels // 24)
    data, weight = op.operands
    backward = Op(
        "aten.convolution_backward",
        (replace(op.outputs[0], name="g"), data, weight),
        (replace(data, name="gx"), replace(weight, name="gw")),
        {"groups": channels // 24},
    )
    assert total(kernels(op, machine("h100"))) == pytest.approx(measured, rel=0.15)
    both = total(kernels(backward, machine("h100")))
    assert both == pytest.approx(2.2 * measured, rel=0.2)


def test_few_pixels_stay_on_the_plain_cores() -> None:
    """Turning costs 15 us however small images are; 9 to 13 were measured."""
    small = total(kernels(_conv("f16", 5, 12, 24, 8, 3), machine("h100")))
    assert 5 < small < 14


def test_channels_that_fit_or_are_last_are_left_to_other_formulas() -> None:
    fits = _conv("f16", 32, 64, 64, 56, 3)
    odd = _conv("f16", 32, 65, 64, 56, 3)
    turned = replace(odd.operands[0], strides=(65 * 3136, 1, 56 * 65, 65))  # type: ignore[type-var]
    last = replace(odd, operands=(turned, odd.operands[1]))

    def notes(op: Op, on: Machine) -> bool:
        return any("padded" in kernel.formula for kernel in rules()[op.name](op, on) or ())

    assert notes(odd, machine("h100"))
    assert not notes(fits, machine("h100")) and not notes(last, machine("h100"))
    assert not notes(odd, machine("a100"))
    assert not notes(odd, machine("h100", mode="paper"))


def test_odd_pixels_of_a_window_of_one_take_the_kernels_of_odd_products() -> None:
    """Traced: 336 channels on 14 x 14 took 31.9 us, 120 on 28 x 28, which fit, 11.0."""
    (odd,) = kernels(_conv("f16", 64, 336, 336, 14, 1), machine("h100"))
    (even,) = kernels(_conv("f16", 64, 120, 120, 28, 1), machine("h100"))
    assert odd.time == pytest.approx(31.9, rel=0.3) and odd.family == "conv"
    assert even.time == pytest.approx(11.0, rel=0.3)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("groups", [1, 3])
def test_many_points_take_what_each_takes(window: int, groups: int) -> None:
    batches = [2, 8, 64]
    many = PointValues(np.asarray(batches))
    times = total(kernels(_conv("f16", many, 33, 66, 15, window, groups), machine("h100")))  # type: ignore[arg-type]
    assert isinstance(times, PointValues)
    each = [
        total(kernels(_conv("f16", n, 33, 66, 15, window, groups), machine("h100")))
        for n in batches
    ]
    assert times.values.tolist() == each
