"""Depthwise convolutions: torch's own kernels, a thread an element, or cuDNN's, by bytes."""

from __future__ import annotations

import math

from costmodels.formulas.elements import channels_last
from costmodels.formulas.machine import Machine, traffic
from irgraph.ir.tensor import Tensor

DEPTHWISE = "max(flop / quarter of the plain cores' peak, bytes / DRAM bandwidth), each moved once"
SHARE = 0.25
"""Share of the peak that cuDNN's depthwise convolutions reach, without a measurement."""

LAST_FACTOR = 1.34
"""Factor on the streaming time of cuDNN's kernels with channels last: fitted to steps of six
networks that ``irgraph evaluate steps`` does not compare (timm, trained on an RTX 3090 in AMP)."""

CONVERSION_NOTE = f"{DEPTHWISE}; before and after it cuDNN's transposes to channels last and back"
PASSES = 3
"""Number of times that each image is moved if channels are not last: read and written by the
conversion, and read or written by the kernel. cuDNN has fast kernels for channels last alone
(``c1_k1_nhwc``, also seen in profiles of NCHW programs). Large images with 5 x 5 windows are then
2.4 (A100) and 2.2 (RTX A6000) times as fast forward as with torch's kernels, 3.8 and 3.5 times
backward: between the means of a public comparison, small shapes included, 1.2 to 1.3, and its
maxima, 3.9, 3.7, 5.8 and 4.5 (torch, pull request 91735)."""

THREADS = "instructions of a thread an element (torch, DepthwiseConv2d.cu) / integer lanes x clock"
LANES = 64
ELEMENT, TAP, WEIGHT_TAP = 150.0, 9.0, 32.8
"""Instructions of torch's depthwise kernels for an element of the result and for each tap of its
window, fitted to the 30 latencies of Ding et al. 2024 (UniRepLKNet, Table 1: 3 x 3 to 31 x 31 in
f32 on an RTX 2080 Ti) within 23 %, 7 % on average. The weight's gradient has a block for each tap
that iterates over all images: backward takes 65 ms, forward 14 (RTX 3090, torch issue 75747)."""

WINDOWS, MIN_CHANNELS, MIN_WIDTH = (1, 3, 5), 32, 7
"""Window sides, minimum number of channels and minimum image width for which torch calls cuDNN in
f16."""

STRIDED, STRIDED_WIDE, WIDE = 512, 256, 28
"""Number of channels from which torch calls cuDNN with stride 2: for any image, and for images of
the width ``WIDE`` and more (torch, Convolution.cpp, ``check_cudnn_depthwise_workload_with_filter``:
measured by its authors, cuDNN 8.2 and newer)."""


def depthwise_time(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine, *, dilated: bool
) -> tuple[float, str]:
    """Return microseconds and the formula of a depthwise convolution, or of one of its gradients.

    Args:
        data: image of the forward pass.
        weight: windows of the forward pass.
        result: result of the forward pass.
        name: ``data`` or ``weight`` gradient, or another name for the forward pass.
        machine: the device.
        dilated: whether the window is dilated.
    """
    depth = int(math.prod(weight.shape[1:]))
    stream_time = machine.stream(traffic(data, weight, result))
    if uses_torch_kernels(data, weight, result, dilated=dilated):
        element_count = data.numel if "data" in name else result.numel
        taps = WEIGHT_TAP * depth if "weight" in name else ELEMENT + TAP * depth
        return max(
            machine.cycles(element_count * taps / (LANES * machine.sheet.sms)), stream_time
        ), THREADS
    peak = machine.sheet.peak("f32")[0] * SHARE
    is_last = channels_last(data)
    memory_time = LAST_FACTOR * stream_time if is_last and not machine.paper else stream_time
    time = max(2.0 * result.numel * depth / peak / 1e3, memory_time)
    if is_last or data.dtype != "f16" or machine.paper:
        return time, DEPTHWISE
    return time + machine.stream((PASSES - 1) * traffic(data, result)), CONVERSION_NOTE


def uses_torch_kernels(data: Tensor, weight: Tensor, result: Tensor, *, dilated: bool) -> bool:
    """Return whether torch's own kernels run: always, but for channels last and some f16 shapes."""
    if data.rank > 4 or channels_last(data):
        return False
    square = data.rank == 4 and len(set(weight.shape[2:])) == 1
    has_kernel = square and int(weight.shape[-1]) in WINDOWS and int(data.shape[1]) >= MIN_CHANNELS
    if data.dtype != "f16" or not has_kernel or dilated or int(data.shape[-1]) < MIN_WIDTH:
        return True
    strides = {_stride(*sides) for sides in zip(data.shape[2:], result.shape[2:], strict=True)}
    return strides != {1} and not (
        strides == {2} and _cudnn_runs_strided(data, int(weight.shape[-1]))
    )


def _stride(side: int, result_side: int) -> int:
    """Return the stride that reduces a padded side to ``result_side`` elements."""
    return max(round(side / max(result_side, 1)), 1)


def _cudnn_runs_strided(data: Tensor, window: int) -> bool:
    """Return whether cuDNN runs a window with stride 2."""
    batch, channels, width = (int(data.shape[axis]) for axis in (0, 1, 3))
    if window == 1:
        small = width <= WIDE if batch == 1 else batch <= 16 and channels >= 128
        return small and (batch == 1 or width <= MIN_WIDTH)
    return batch == 1 or channels >= STRIDED or (channels >= STRIDED_WIDE and width >= WIDE)
