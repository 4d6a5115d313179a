"""Fused attention of torch on Hopper: which library's kernel runs, and its steps of blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import PointValues
from tests.costmodels.families.helpers import call, kernels, machine, tensor

Shape = tuple[int, int, int, int]
FLASH, CUDNN = (f"aten._scaled_dot_product_{name}_attention" for name in ("flash", "cudnn"))


def _op(name: str, shape: Shape, dtype: str = "bf16", **attributes: float | bool) -> Op:
    operands = [
        tensor(n, *shape, dtype=dtype) for n in ("gqkv" if name.endswith("backward") else "qkv")
    ]
    return call(name, *operands, out=shape, **attributes)


def _one(op: Op, device: str = "h100", software: str = "torch-2") -> Kernel:
    (found,) = kernels(op, machine(device, software))
    return found


MEASURED: list[tuple[str, Shape, bool, float]] = [
    ("", (2, 8, 1001, 96), False, 18.7), ("", (17, 11, 1219, 48), False, 200.2),
    ("", (5, 1, 793, 24), False, 12.7), ("", (15, 2, 177, 48), False, 6.4),
    ("", (2, 2, 2578, 48), True, 26.5), ("", (18, 1, 1582, 80), True, 39.9),
    ("_backward", (19, 15, 2595, 88), False, 4703.8),
    ("_backward", (10, 21, 493, 48), False, 140.3), ("_backward", (8, 1, 211, 120), False, 18.7),
    ("_backward", (1, 27, 17, 24), False, 9.0),
]  # fmt: skip
"""Microseconds of cuDNN's kernels, H100 SXM 80 GB, torch 2.11: batch, heads, tokens, features."""


@pytest.mark.parametrize(("way", "shape", "causal", "measured"), MEASURED)
def test_cudnns_passes_come_out_within_a_fifth(
    way: str, shape: Shape, causal: bool, measured: float
) -> None:
    found = _one(_op(CUDNN + way, shape, is_causal=causal))
    assert found.time == pytest.approx(measured, rel=0.2)
    assert not found.outside


def test_a_step_of_gpt_2_takes_as_long_as_it_did() -> None:
    """Traced on an H100 (12 heads of 64, 8 x 1,024 tokens): 47.3 us forward, 155.2 backward."""
    shape = (8, 12, 1024, 64)
    assert _one(_op(CUDNN, shape, is_causal=True)).time == pytest.approx(47.3, rel=0.15)
    backward = _one(_op(f"{CUDNN}_backward", shape, is_causal=True))
    assert backward.time == pytest.approx(155.2, rel=0.15)


@pytest.mark.parametrize(
    ("way", "shape", "before", "measured"),
    [
        ("", (14, 5, 3236, 120), 119, 1371),
        ("", (5, 13, 3287, 48), 43, 770),
        ("_backward", (2, 2, 768, 48), 44, 45),
    ],
)
def test_padded_heads_run_flash_attention_2(
    way: str, shape: Shape, before: int, measured: float
) -> None:
    """Measured less the copies that pad; the scale tells of how many features there were."""
    found = _one(_op(FLASH + way, shape, scale=1 / math.sqrt(before)))
    assert "FlashAttention-2" in found.formula
    assert found.time == pytest.approx(measured, rel=0.2)


def test_torch_asks_cudnn_first_in_releases_that_prefer_it() -> None:
    op = _op(FLASH, (8, 16, 2048, 128))
    assert _one(op).time == _one(_op(CUDNN, (8, 16, 2048, 128))).time
    assert "FlashAttention-2" in _one(op, software="torch-2.7").formula
    assert _one(op, software="torch-2.7").time > 1.5 * _one(op).time
    for scale in (1.0, 0.125, 1 / math.sqrt(128)):
        assert "cuDNN" in _one(_op(FLASH, (8, 16, 2048, 128), scale=scale)).formula


@pytest.mark.parametrize("device", ["h100", "a100", "rtx-4090"])
@pytest.mark.parametrize("way", ["", "_backward"])
def test_torch_2_1_has_the_first_version_of_flash_attention(device: str, way: str) -> None:
    """The release notes of PyTorch 2.2 say about two times faster than before."""
    op = _op(FLASH + way, (8, 16, 2048, 128))
    second, first = (_one(op, device, software=name) for name in ("torch-2.7", "torch-2.1"))
    assert first.time == pytest.approx(2 * second.time)
    assert first.spread / first.time > second.spread / second.time


def test_other_cards_and_types_have_other_laws() -> None:
    for device, dtype in (("a100", "bf16"), ("b200", "bf16"), ("h100", "f32")):
        found = _one(_op(FLASH, (8, 16, 2048, 128), dtype), device)
        assert "steps of blocks" not in found.formula


def test_wider_heads_are_outside_and_take_longer_in_proportion() -> None:
    narrow, wide = (_one(_op(CUDNN, (8, 16, 2048, dim))) for dim in (128, 256))
    assert wide.outside and not narrow.outside
    assert wide.time == pytest.approx(2 * narrow.time, rel=0.05)


@pytest.mark.parametrize("name", [FLASH, f"{FLASH}_backward", CUDNN, f"{CUDNN}_backward"])
@pytest.mark.parametrize("causal", [False, True])
def test_many_points_take_what_each_takes(name: str, causal: bool) -> None:
    lengths = [64, 1000, 4096]
    many = PointValues(np.asarray(lengths))
    shape: Shape = (4, 12, many, 64)  # type: ignore[assignment]
    times = _one(_op(name, shape, is_causal=causal), software="torch-2.7").time
    each = [
        _one(_op(name, (4, 12, n, 64), is_causal=causal), software="torch-2.7").time
        for n in lengths
    ]
    assert isinstance(times, PointValues)
    assert times.values.tolist() == each
