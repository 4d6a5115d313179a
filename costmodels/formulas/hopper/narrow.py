"""Gradients in TF32 on Hopper of channels-last images with few channels.

cuDNN's kernels (``wgrad_implicit_gemm_indexed_wo_smem_tf32f32``, ``wgrad_alg0_engine_NHWC``,
``dgrad_implicit_gemm_f32f32_tf32f32``) pad few channels to tiles and reach a fifth of the peak of
matrix units, with weights converted before.

Constants: H100 SXM 80 GB, torch 2.11, cuDNN 9.19; nine pairs of gradients, 3 x 3, with a mean
error of 19 %.
"""

from __future__ import annotations

import math

from costmodels.formulas.elements import channels_last
from costmodels.formulas.intervals import BORROWED
from costmodels.formulas.machine import Machine, shape_text, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.points.point_values import maximum, to_int
from irgraph.ir.tensor import Tensor

TARGET, WINDOW = "sm_90", 9
"""The measured case: target of the card, and elements of a window."""
NOTE = "few channels padded to tiles, at a fifth of the peak (cuDNN 9.19, H100)"
FEW = 64
"""Number of input or output channels below which kernels are slow, and multiple of the padding."""
START, SHARE = 12.6, 0.193
"""Microseconds of the start of a gradient's kernels, and share of the TF32 peak."""


def narrow_on_hopper(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine
) -> tuple[Kernel, ...]:
    """Return one gradient of a dense convolution over few channels, ``()`` for others."""
    applies = machine.sheet.target == TARGET and not machine.software.slow_grouped_last
    tf32 = data.dtype == "f32" and machine.sheet.convolution_dtype == "tf32"
    if not applies or machine.paper or not tf32 or "gradient" not in name:
        return ()
    outer, inner = int(weight.shape[0]), int(weight.shape[1])
    window = int(math.prod(weight.shape[2:]))
    dense = data.rank == 4 and inner == int(data.shape[1]) and window == WINDOW
    if not dense or min(outer, inner) >= FEW or not channels_last(data):
        return ()
    pixels = result.numel // to_int(result.shape[1])
    area = -(-inner // FEW) * FEW * -(-outer * window // FEW) * FEW
    rate = machine.sheet.peak("tf32")[0] * SHARE
    memory_time = machine.stream(traffic(data, weight, result))
    time = START + maximum(2.0 * pixels * area / rate / 1e3, memory_time)
    text = f"{name} {shape_text(data)} * {shape_text(weight)}"
    return (work("conv", text, time, BORROWED, NOTE),)
