"""Pools beside what was measured of them: kernels of sweeps on an H100 (SXM 80 GB, torch 2.11)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from costmodels.families.pool import _plane_walk_time
from irgraph.ir.op import Op
from tests.costmodels.families.helpers import call, kernels, machine, tensor
from tests.costmodels.families.test_swept_norms import H100, near, priced


def upsampled(batch: int, channels: int, side: int, dtype: str, base: str = "bilinear2d") -> Op:
    """Return an image made twice as wide and high."""
    image, made = (tensor(n, batch, channels, s, s, dtype=dtype) for n, s in _sides(side))
    return Op(f"aten.upsample_{base}", (image,), (made,))


def _sides(side: int) -> tuple[tuple[str, int], ...]:
    return ("x", side), ("y", 2 * side)


@pytest.mark.parametrize(
    ("batch", "channels", "side", "dtype", "warm", "cold"),
    [
        (7, 33, 9, "f32", 40.9, 87.3),
        (2, 80, 107, "f32", 53.66, 70.59),
        (5, 486, 102, "f32", 1009.53, 1007.96),
        (3, 342, 21, "f16", 196.74, 401.77),
        (28, 252, 27, "f16", 2306.16, 2715.93),
        (54, 354, 38, "f16", 7353.6, 7352.36),
    ],
)
def test_bilinear_resampling_takes_what_was_measured(
    batch: int, channels: int, side: int, dtype: str, warm: float, cold: float
) -> None:
    assert near(priced(upsampled(batch, channels, side, dtype)), warm, cold)


def test_small_planes_cost_by_their_number() -> None:
    small, wider, more = (
        priced(upsampled(*sizes, "f32")) for sizes in ((4, 64, 16), (4, 64, 32), (4, 128, 16))
    )
    assert wider == small and more > 1.9 * small


def test_planes_whose_channels_lie_side_by_side_move_their_bytes() -> None:
    op = upsampled(8, 64, 16, "f32")
    last = replace(op.inputs[0], strides=(64 * 256, 1, 64 * 16, 64))
    assert priced(replace(op, operands=(last,))) < priced(op) / 5
    assert priced(upsampled(8, 64, 16, "f32", "nearest2d")) < priced(op) / 5
    assert _plane_walk_time(replace(op, operands=()), 0, H100) == 0
    assert _plane_walk_time(op, 0, machine("h100", mode="paper")) == 0


def test_kernels_that_nobody_measured_are_less_sure() -> None:
    wide = [
        kernels(upsampled(8, 64, 16, "f32", base), H100)[0] for base in ("bilinear2d", "bicubic2d")
    ]
    assert wide[0].time == wide[1].time and wide[0].spread < wide[1].spread


@pytest.mark.parametrize(
    ("batch", "channels", "side", "dtype", "warm", "cold"),
    [
        (40, 107, 120, "f32", 186.95, 189.86),
        (22, 98, 58, "f32", 22.43, 27.3),
        (24, 356, 50, "f16", 63.46, 65.67),
        (11, 331, 68, "f16", 50.56, 52.87),
        (29, 31, 112, "f16", 32.1, 36.1),
    ],
)
def test_means_over_windows_take_what_was_measured(
    batch: int, channels: int, side: int, dtype: str, warm: float, cold: float
) -> None:
    half = (batch, channels, side // 2, side // 2)
    image = tensor("x", batch, channels, side, side, dtype=dtype)
    op = call("aten.avg_pool2d", image, out=half, kernel_size=(2, 2))
    op = replace(op, results=(replace(op.outputs[0], dtype=dtype),))
    assert near(priced(op), warm, cold)


def test_wide_windows_take_their_elements() -> None:
    image = tensor("x", 64, 256, 56, 56)
    small, wide = (
        priced(call("aten.avg_pool2d", image, out=(64, 256, 50, 50), kernel_size=(side, side)))
        for side in (2, 7)
    )
    assert wide > 5 * small


@pytest.mark.parametrize(
    ("batch", "channels", "side", "dtype", "warm", "cold"),
    [
        (11, 5, 18, "f32", 3.78, 4.29),
        (3, 140, 23, "f16", 6.02, 6.91),
        (13, 222, 12, "f32", 8.67, 9.98),
        (41, 124, 33, "f16", 70.66, 72.83),
        (17, 169, 123, "f32", 541.23, 541.99),
    ],
)
def test_gradients_of_maxima_take_what_was_measured(
    batch: int, channels: int, side: int, dtype: str, warm: float, cold: float
) -> None:
    half = -(-side // 2)
    image = tensor("x", batch, channels, side, side, dtype=dtype)
    grad = tensor("g", batch, channels, half, half, dtype=dtype)
    places = replace(grad, name="i", dtype="i64")
    made = replace(image, name="d")
    op = Op("aten.max_pool2d_with_indices_backward", (grad, image, places), (made,))
    assert [kernel.name for kernel in kernels(op, H100)][:1] == ["clear gradient"]
    assert near(priced(op), warm, cold)
