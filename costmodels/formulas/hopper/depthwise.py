"""Depthwise convolutions on Hopper: torch's kernels by thread, cuDNN's by element, tap and byte.

Of channels-first images torch's own kernels run all but some shapes in f16. Their gradient of a
weight has a block for each channel and tap, whose warps each walk an image: few channels leave
multiprocessors idle, small images lanes. With channels last, cuDNN moves f16 at two thirds of
DRAM bandwidth and reads each tap of a larger window anew; gradients of weights take as long again
and some microseconds (``wgrad2d_c1_k1_nhwc`` and its reduction, ``depthwise_convolution_wgrad``),
but for 7 x 7 in f32, which it takes as a dense product of joined channels: twelve times as long.

Constants: H100 SXM 80 GB, torch 2.11, cuDNN 9.19, fitted by hand to 190 rows of sweeps; cycles of
a multiprocessor carry to other cards of Hopper. All have stride 1 and "same" padding. Rows held out
come out 8 to 12 % off on average with torch's kernels, 7 to 28 % with cuDNN's forward, 34 to 42 %
with its gradients: which of several kernels it takes is not known for sure. One gradient of a
weight of 1 x 1 windows in f32 took a tiled kernel and a thirtieth of the time given here.
"""

from __future__ import annotations

import math

from msgspec import Struct

from costmodels.formulas.depthwise import by_threads
from costmodels.formulas.elements import channels_last
from costmodels.formulas.intervals import BORROWED, NEAR, UNKNOWN
from costmodels.formulas.machine import Machine, shape_text, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.points.point_values import Number, maximum, minimum, to_int
from irgraph.ir.tensor import Tensor

TARGET = "sm_90"
THREADS = "cycles of torch's kernels, a thread an element, a block a weight (H100, torch 2.11)"
CUDNN = "cuDNN's depthwise kernels by element, tap and byte (cuDNN 9.19, H100)"
START = 1.9


class Rate(Struct, frozen=True):
    """What an element of torch's kernels takes.

    Attributes:
        element: cycles of a multiprocessor for each element.
        tap: the same for each tap within the image.
        latency: microseconds that a tap adds where there is little else to do.
    """

    element: float
    tap: float
    latency: float


UNROLLED, GENERIC = Rate(1.7, 0.1, 0.05), Rate(2.3, 0.166, 0.15)
UNROLLED_SIDES = (1, 3, 5)

WARPS, RESIDENT = 8, 64
"""Warps of a block of a weight's gradient, no more than images, and those of a multiprocessor."""
STEP, SHARED, BLOCK = 250.0, 8.6, 5000.0
"""Cycles in which a warp takes 32 pixels, what each warp beside it adds, and those of a block."""

LAST_SHARE = {"f16": 0.66, "bf16": 0.66, "f32": 0.84}
"""Share of DRAM bandwidth with channels last."""
LAST_TAP, LAST_TAP_WIDE, WIDE = 0.081, 0.144, 7
"""Cycles of a tap within the image in f32, of windows up to 5 x 5 and from 7 x 7 on; half in
16 bits, whose kernels take two channels at a time, but for strided gradients of data and wide ones
of weights (both assumed: nothing of either was measured)."""
LAST_LATENCY = 0.21
"""Microseconds that a tap within the image takes in 16 bits where there is little to do."""
FEW_CHANNELS, FEW_CYCLES = 16, {"f16": 3.7, "bf16": 3.7, "f32": 13.0}
"""Channels up to which windows of one element take grouped kernels, and cycles of an element."""

SUMS, IMAGE_SUM, TILED_SUMS, TILED_FROM = 2.1, 0.065, 11.0, 4e6
"""Microseconds beside the work of a weight's gradient: of kernels that leave sums for each image to
a second one, and of tiled ones in f32 and in 16 bits from so many elements on."""
JOINED_TAP, JOINED_FROM = 1.23, 8
"""Cycles of a tap of 7 x 7 windows in f32, and side of images from which they are joined."""
GROUPED_PIXEL = 11.9
"""Cycles of a pixel of smaller ones, and of windows of one element, a block or two a channel."""

TILED_CYCLES, TILED_START, TILED_BELOW = 1.57, 15.0, 56
"""Of gradients of f16 weights whose images come channels first and have smaller sides: cycles of an
element turned and summed, and microseconds beside them."""
CHANNEL_PIXEL = 1.19
"""Cycles of a pixel of others: a block for each channel goes over all
(``wgrad2d_shmem_tiling``)."""


def depthwise_on_hopper(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine
) -> tuple[Kernel, ...]:
    """Return the kernel of a depthwise convolution, or of one of its gradients.

    Nothing where others price it: other cards, several results a channel, transposed ones, and
    cuDNN's on channels-first images but for gradients of weights.
    """
    known = machine.sheet.target == TARGET and not machine.software.slow_grouped_last
    alone = int(weight.shape[1]) == 1 and data.shape[1] == weight.shape[0] == result.shape[1]
    if not known or machine.paper or not alone or int(data.shape[1]) == 1 or "transp" in name:
        return ()
    weights, spread, note = "weight" in name, NEAR, THREADS
    strided = math.prod(data.shape[2:]) > 2 * math.prod(result.shape[2:])
    if by_threads(data, weight, result, dilated=False):
        priced = _thread_weights if weights else _threads
        time = priced(data, weight, result, name, machine)
    elif weights and int(math.prod(weight.shape[2:])) == 1 and data.dtype == "f32":
        return ()  # one case was measured, which another kernel ran
    elif data.rank == 4 and channels_last(data) and data.dtype in LAST_SHARE:
        time, note = _last(data, weight, result, name, machine, strided=strided), CUDNN
        spread = UNKNOWN if weights or (strided and name != "conv") else BORROWED
    elif weights and data.rank == 4:
        time, note, spread = _first_weights(data, weight, result, machine), CUDNN, UNKNOWN
    else:
        return ()
    text = f"{name} {shape_text(data)} * {shape_text(weight)}"
    return (work("conv", text, time, spread, note),)


def _inside(weight: Tensor, result: Tensor) -> Number:
    """Return the taps of a window that lie within the image, on average."""
    found: Number = 1.0
    for side, pixels in zip(weight.shape[2:], result.shape[2:], strict=True):
        half = int(side) // 2
        found *= maximum(int(side) - half * (half + 1) / to_int(pixels), 1.0)
    return found


def _shared(machine: Machine, cycles: Number) -> Number:
    """Return microseconds of cycles that all multiprocessors share."""
    return machine.cycles(cycles / machine.sheet.sms)


def _threads(data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine) -> Number:
    """Return microseconds of torch's kernels that make images."""
    sides = {int(side) for side in weight.shape[2:]}
    unrolled = len(sides) == 1 and sides.pop() in UNROLLED_SIDES
    rate = UNROLLED if unrolled else GENERIC
    made, taps = data if "data" in name else result, _inside(weight, result)
    cycles = made.numel * (rate.element + rate.tap * taps)
    moved = machine.stream(traffic(data, weight, result))
    return START + maximum(_shared(machine, cycles), taps * rate.latency, moved)


def _thread_weights(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine
) -> Number:
    """Return microseconds of torch's gradient of a weight: a block for each of its elements."""
    del name
    batch, pixels = to_int(result.shape[0]), to_int(math.prod(result.shape[2:]))
    warps = minimum(batch, WARPS)
    steps = -(-batch // warps) * (-(-pixels // 32) + 1)
    each = -(-weight.numel // machine.sheet.sms)
    resident = minimum(each, RESIDENT // warps)
    waves = maximum(weight.numel / (machine.sheet.sms * resident), 1.0)
    cycles = waves * (steps * (STEP + SHARED * resident * warps) + BLOCK)
    return START + maximum(machine.cycles(cycles), machine.stream(traffic(data, weight, result)))


def _last(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine, *, strided: bool
) -> Number:
    """Return microseconds of cuDNN's kernels with channels last."""
    window, wide = int(math.prod(weight.shape[2:])), int(weight.shape[-1]) >= WIDE
    narrow, weights = data.dtype != "f32", "weight" in name
    if weights and not narrow and wide:
        return _joined_or_grouped(data, weight, result, machine)
    slow = strided if "data" in name else weights and wide
    taps = _inside(weight, result)
    made = data.numel if "data" in name else result.numel
    cycles = made * taps * (LAST_TAP_WIDE if wide else LAST_TAP)
    cycles *= 0.5 if narrow and not slow else 1.0
    if window == 1 and int(data.shape[1]) <= FEW_CHANNELS and not weights:
        cycles = made * FEW_CYCLES[data.dtype]
    moved = machine.stream(traffic(data, weight, result), LAST_SHARE[data.dtype])
    latency = taps * LAST_LATENCY if narrow and window > 1 else 0.0
    time = START + maximum(_shared(machine, cycles), moved, latency)
    if not weights:
        return time
    if narrow and result.numel < TILED_FROM:
        return time + SUMS + IMAGE_SUM * to_int(data.shape[0])
    return time + TILED_SUMS


def _joined_or_grouped(data: Tensor, weight: Tensor, result: Tensor, machine: Machine) -> Number:
    """Return microseconds of gradients of f32 weights for which cuDNN has no depthwise kernel."""
    pixels = to_int(math.prod(result.shape[2:]))
    if int(weight.shape[-1]) >= WIDE and pixels >= JOINED_FROM**2:
        window = int(math.prod(weight.shape[2:]))
        return START + _shared(machine, result.numel * window * JOINED_TAP)
    each = maximum(to_int(data.shape[1]) / (2 * machine.sheet.sms), 1.0)
    return START + machine.cycles(GROUPED_PIXEL * to_int(data.shape[0]) * pixels * each)


def _first_weights(data: Tensor, weight: Tensor, result: Tensor, machine: Machine) -> Number:
    """Return microseconds of cuDNN's gradient of f16 weights, of channels-first images."""
    side = int(result.shape[-1])
    if int(weight.shape[-1]) > 1 and side < TILED_BELOW:
        return TILED_START + _shared(machine, result.numel * TILED_CYCLES)
    rounds = -(-to_int(data.shape[1]) // machine.sheet.sms)
    pixels = to_int(data.shape[0]) * to_int(math.prod(result.shape[2:]))
    return START + machine.cycles(rounds * pixels * CHANNEL_PIXEL)
