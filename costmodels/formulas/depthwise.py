"""Depthwise convolutions: torch's own kernels, a thread an element, or cuDNN's, by bytes."""

from __future__ import annotations

import math

from costmodels.formulas.elements import channels_last
from costmodels.formulas.machine import Machine, traffic
from irgraph.ir.tensor import Tensor

DEPTHWISE = "max(flop / quarter of the plain cores' peak, bytes / DRAM bandwidth), each moved once"
SHARE = 0.25
"""Share of the peak that cuDNN's depthwise convolutions reach; nothing was measured."""

LAST = 1.34
"""How many times what its bytes do cuDNN's kernels take with channels last: fitted to steps of six
networks that ``irgraph evaluate steps`` does not compare (timm, trained on an RTX 3090 in AMP)."""

TURNED = f"{DEPTHWISE}; before and after it cuDNN's transposes to channels last and back"
PASSES = 3
"""Times that each image is moved where channels are not last: turned (read and written), and read
or written by the kernel, of which cuDNN has fast ones for channels last alone (``c1_k1_nhwc``, seen
in profiles of NCHW programs, too). So large images with 5 x 5 windows are 2.4 (A100) and 2.2 (RTX
A6000) times as fast forward as with torch's kernels, 3.8 and 3.5 times backward: between the means
of a public comparison, small shapes included, 1.2 to 1.3, and its greatest, 3.9, 3.7, 5.8 and 4.5
(torch, pull request 91735)."""

THREADS = "instructions of a thread an element (torch, DepthwiseConv2d.cu) / integer lanes x clock"
LANES = 64
ELEMENT, TAP, WEIGHT_TAP = 150.0, 9.0, 32.8
"""Instructions of torch's depthwise kernels: of an element of the result and of each tap of its
window, fitted to the 30 latencies of Ding et al. 2024 (UniRepLKNet, Table 1: 3 x 3 to 31 x 31 in
f32 on an RTX 2080 Ti) within 23 %, 7 % on average. The weight's gradient has a block a tap that
goes over all images: backward takes 65 ms where forward takes 14 (RTX 3090, torch issue 75747)."""

WINDOWS, FEWEST, NARROWEST = (1, 3, 5), 32, 7
"""Sides of windows, channels and width of images for which torch asks cuDNN in f16."""

STRIDED, STRIDED_WIDE, WIDE = 512, 256, 28
"""Channels from which it does so with stride 2: any, and of images so wide (torch, Convolution.cpp,
``check_cudnn_depthwise_workload_with_filter``: measured by its authors, cuDNN 8.2 and newer)."""


def depthwise(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine, *, dilated: bool
) -> tuple[float, str]:
    """Return microseconds and the formula of a depthwise convolution, or of one of its gradients.

    Args:
        data: image of the forward pass.
        weight: its windows.
        result: what the forward pass makes.
        name: says which of the three it is: ``data`` or ``weight`` gradient, or forward.
        machine: the device.
        dilated: whether the window is.
    """
    depth = int(math.prod(weight.shape[1:]))
    memory = machine.stream(traffic(data, weight, result))
    if by_threads(data, weight, result, dilated=dilated):
        made = data.numel if "data" in name else result.numel
        taps = WEIGHT_TAP * depth if "weight" in name else ELEMENT + TAP * depth
        return max(machine.cycles(made * taps / (LANES * machine.sheet.sms)), memory), THREADS
    peak = machine.sheet.peak("f32")[0] * SHARE
    last = channels_last(data)
    moved = LAST * memory if last and not machine.paper else memory
    time = max(2.0 * result.numel * depth / peak / 1e3, moved)
    if last or data.dtype != "f16" or machine.paper:
        return time, DEPTHWISE
    return time + machine.stream((PASSES - 1) * traffic(data, result)), TURNED


def by_threads(data: Tensor, weight: Tensor, result: Tensor, *, dilated: bool) -> bool:
    """Return whether torch's own kernels run it: all but channels last, and some shapes in f16."""
    if data.rank > 4 or channels_last(data):
        return False
    square = data.rank == 4 and len(set(weight.shape[2:])) == 1
    fits = square and int(weight.shape[-1]) in WINDOWS and int(data.shape[1]) >= FEWEST
    if data.dtype != "f16" or not fits or dilated or int(data.shape[-1]) < NARROWEST:
        return True
    strides = {_stride(*sides) for sides in zip(data.shape[2:], result.shape[2:], strict=True)}
    return strides != {1} and not (strides == {2} and _strided(data, int(weight.shape[-1])))


def _stride(side: int, made: int) -> int:
    """Return the stride that makes so many elements of a padded side."""
    return max(round(side / max(made, 1)), 1)


def _strided(data: Tensor, window: int) -> bool:
    """Return whether cuDNN runs a window with stride 2."""
    batch, channels, width = (int(data.shape[axis]) for axis in (0, 1, 3))
    if window == 1:
        small = width <= WIDE if batch == 1 else batch <= 16 and channels >= 128
        return small and (batch == 1 or width <= NARROWEST)
    return batch == 1 or channels >= STRIDED or (channels >= STRIDED_WIDE and width >= WIDE)
