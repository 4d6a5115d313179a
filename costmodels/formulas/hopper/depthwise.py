"""Depthwise convolutions on Hopper: torch's kernels by thread, cuDNN's by element, tap and byte.

For channels-first images torch's own kernels run, except for some shapes in f16. Their gradient of
a weight has a block for each channel and tap, whose warps each process an image: few channels
leave multiprocessors idle, small images leave lanes idle. With channels last, cuDNN moves f16 at
two thirds of DRAM bandwidth and reads each tap of a larger window again. Gradients of weights take
the same time plus some microseconds (``wgrad2d_c1_k1_nhwc`` and its reduction,
``depthwise_convolution_wgrad``), except for 7 x 7 in f32, which cuDNN computes as a dense product
of joined channels: twelve times as long.

Constants: H100 SXM 80 GB, torch 2.11, cuDNN 9.19, fitted by hand to 190 rows of sweeps; cycles of
a multiprocessor apply to other cards of Hopper. All have stride 1 and "same" padding. Held-out rows
are 8 to 12 % off on average with torch's kernels, 7 to 28 % with cuDNN's forward, 34 to 42 % with
its gradients: the choice among several kernels is not known for sure. One gradient of a weight of
1 x 1 windows in f32 used a tiled kernel and a thirtieth of the time predicted here.
"""

from __future__ import annotations

import math

from msgspec import Struct

from costmodels.formulas.depthwise import uses_torch_kernels
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
    """Constants of torch's kernels.

    Attributes:
        element: cycles of a multiprocessor for each element.
        tap: cycles of a multiprocessor for each tap within the image.
        latency: microseconds of a tap in a small kernel.
    """

    element: float
    tap: float
    latency: float


UNROLLED, GENERIC = Rate(1.7, 0.1, 0.05), Rate(2.3, 0.166, 0.15)
UNROLLED_SIDES = (1, 3, 5)

WARPS, RESIDENT = 8, 64
"""Maximum number of warps of a block of a weight's gradient, at most the number of images, and of a
multiprocessor."""
STEP_CYCLES, NEIGHBOUR_CYCLES, BLOCK_CYCLES = 250.0, 8.6, 5000.0
"""Cycles in which a warp processes 32 pixels, additional cycles for each concurrent warp, and
cycles of a block."""

LAST_SHARE = {"f16": 0.66, "bf16": 0.66, "f32": 0.84}
"""Share of DRAM bandwidth with channels last."""
LAST_TAP, LAST_TAP_WIDE, WIDE = 0.081, 0.144, 7
"""Cycles of a tap within the image in f32, of windows up to 5 x 5 and from 7 x 7 on; half in
16 bits, whose kernels process two channels at a time, except for strided gradients of data and wide
ones of weights (both are assumptions without measurements)."""
LAST_LATENCY = 0.21
"""Microseconds of a tap within the image in 16 bits in a small kernel."""
FEW_CHANNELS, FEW_CYCLES = 16, {"f16": 3.7, "bf16": 3.7, "f32": 13.0}
"""Number of channels up to which windows of one element use grouped kernels, and cycles of an
element."""

SUMS, IMAGE_SUM, TILED_SUMS, TILED_FROM = 2.1, 0.065, 11.0, 4e6
"""Microseconds in addition to the work of a weight's gradient: of kernels whose sums for each image
a second one combines, and of each image; of tiled ones in f32, and in 16 bits from the number of
elements ``TILED_FROM`` on."""
JOINED_TAP, JOINED_FROM = 1.23, 8
"""Cycles of a tap of 7 x 7 windows in f32, and image side from which channels are joined."""
GROUPED_PIXEL = 11.9
"""Cycles of a pixel of smaller images, and of windows of one element, a block or two a channel."""

TILED_CYCLES, TILED_START, TILED_BELOW = 1.57, 15.0, 56
"""Constants of gradients of f16 weights whose images are channels-first and have sides below
``TILED_BELOW``: cycles to convert and sum an element, and microseconds of the start."""
CHANNEL_PIXEL = 1.19
"""Cycles of a pixel of others: a block for each channel iterates over all pixels
(``wgrad2d_shmem_tiling``)."""


def depthwise_on_hopper(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine
) -> tuple[Kernel, ...]:
    """Return the kernel of a depthwise convolution, or of one of its gradients.

    Return ``()`` if another module prices it: on other cards, with several results for each
    channel, if it is transposed, and for cuDNN's kernels on channels-first images except for
    gradients of weights.
    """
    applies = machine.sheet.target == TARGET and not machine.software.slow_grouped_last
    is_depthwise = int(weight.shape[1]) == 1 and data.shape[1] == weight.shape[0] == result.shape[1]
    if (
        not applies
        or machine.paper
        or not is_depthwise
        or int(data.shape[1]) == 1
        or "transp" in name
    ):
        return ()
    weights, spread, note = "weight" in name, NEAR, THREADS
    strided = math.prod(data.shape[2:]) > 2 * math.prod(result.shape[2:])
    if uses_torch_kernels(data, weight, result, dilated=False):
        price = _thread_weight_time if weights else _thread_time
        time = price(data, weight, result, name, machine)
    elif weights and int(math.prod(weight.shape[2:])) == 1 and data.dtype == "f32":
        return ()  # one case was measured, which another kernel ran
    elif data.rank == 4 and channels_last(data) and data.dtype in LAST_SHARE:
        time, note = (
            _channels_last_time(data, weight, result, name, machine, strided=strided),
            CUDNN,
        )
        spread = UNKNOWN if weights or (strided and name != "conv") else BORROWED
    elif weights and data.rank == 4:
        time, note, spread = (
            _channels_first_weight_time(data, weight, result, machine),
            CUDNN,
            UNKNOWN,
        )
    else:
        return ()
    text = f"{name} {shape_text(data)} * {shape_text(weight)}"
    return (work("conv", text, time, spread, note),)


def _mean_inner_taps(weight: Tensor, result: Tensor) -> Number:
    """Return the mean number of a window's taps within the image."""
    taps: Number = 1.0
    for side, pixels in zip(weight.shape[2:], result.shape[2:], strict=True):
        half = int(side) // 2
        taps *= maximum(int(side) - half * (half + 1) / to_int(pixels), 1.0)
    return taps


def _shared_time(machine: Machine, cycles: Number) -> Number:
    """Return microseconds of cycles that all multiprocessors share."""
    return machine.cycles(cycles / machine.sheet.sms)


def _thread_time(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine
) -> Number:
    """Return microseconds of torch's kernels that compute images."""
    sides = {int(side) for side in weight.shape[2:]}
    unrolled = len(sides) == 1 and sides.pop() in UNROLLED_SIDES
    rate = UNROLLED if unrolled else GENERIC
    output, taps = data if "data" in name else result, _mean_inner_taps(weight, result)
    cycles = output.numel * (rate.element + rate.tap * taps)
    memory_time = machine.stream(traffic(data, weight, result))
    return START + maximum(_shared_time(machine, cycles), taps * rate.latency, memory_time)


def _thread_weight_time(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine
) -> Number:
    """Return microseconds of torch's gradient of a weight: a block for each of its elements."""
    del name
    batch, pixels = to_int(result.shape[0]), to_int(math.prod(result.shape[2:]))
    warps = minimum(batch, WARPS)
    steps = -(-batch // warps) * (-(-pixels // 32) + 1)
    blocks_each = -(-weight.numel // machine.sheet.sms)
    resident = minimum(blocks_each, RESIDENT // warps)
    waves = maximum(weight.numel / (machine.sheet.sms * resident), 1.0)
    cycles = waves * (steps * (STEP_CYCLES + NEIGHBOUR_CYCLES * resident * warps) + BLOCK_CYCLES)
    return START + maximum(machine.cycles(cycles), machine.stream(traffic(data, weight, result)))


def _channels_last_time(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine, *, strided: bool
) -> Number:
    """Return microseconds of cuDNN's kernels with channels last."""
    window, wide = int(math.prod(weight.shape[2:])), int(weight.shape[-1]) >= WIDE
    narrow, weights = data.dtype != "f32", "weight" in name
    if weights and not narrow and wide:
        return _dense_or_grouped_time(data, weight, result, machine)
    slow = strided if "data" in name else weights and wide
    taps = _mean_inner_taps(weight, result)
    element_count = data.numel if "data" in name else result.numel
    cycles = element_count * taps * (LAST_TAP_WIDE if wide else LAST_TAP)
    cycles *= 0.5 if narrow and not slow else 1.0
    if window == 1 and int(data.shape[1]) <= FEW_CHANNELS and not weights:
        cycles = element_count * FEW_CYCLES[data.dtype]
    memory_time = machine.stream(traffic(data, weight, result), LAST_SHARE[data.dtype])
    latency = taps * LAST_LATENCY if narrow and window > 1 else 0.0
    time = START + maximum(_shared_time(machine, cycles), memory_time, latency)
    if not weights:
        return time
    if narrow and result.numel < TILED_FROM:
        return time + SUMS + IMAGE_SUM * to_int(data.shape[0])
    return time + TILED_SUMS


def _dense_or_grouped_time(
    data: Tensor, weight: Tensor, result: Tensor, machine: Machine
) -> Number:
    """Return microseconds of gradients of f32 weights for which cuDNN has no depthwise kernel."""
    pixels = to_int(math.prod(result.shape[2:]))
    if int(weight.shape[-1]) >= WIDE and pixels >= JOINED_FROM**2:
        window = int(math.prod(weight.shape[2:]))
        return START + _shared_time(machine, result.numel * window * JOINED_TAP)
    rounds = maximum(to_int(data.shape[1]) / (2 * machine.sheet.sms), 1.0)
    return START + machine.cycles(GROUPED_PIXEL * to_int(data.shape[0]) * pixels * rounds)


def _channels_first_weight_time(
    data: Tensor, weight: Tensor, result: Tensor, machine: Machine
) -> Number:
    """Return microseconds of cuDNN's gradient of f16 weights, of channels-first images."""
    side = int(result.shape[-1])
    if int(weight.shape[-1]) > 1 and side < TILED_BELOW:
        return TILED_START + _shared_time(machine, result.numel * TILED_CYCLES)
    rounds = -(-to_int(data.shape[1]) // machine.sheet.sms)
    pixels = to_int(data.shape[0]) * to_int(math.prod(result.shape[2:]))
    return START + machine.cycles(rounds * pixels * CHANNEL_PIXEL)
