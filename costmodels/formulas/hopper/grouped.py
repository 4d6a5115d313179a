"""Grouped convolutions on Hopper for which cuDNN 9 has no kernel: channels last, and f32 gradients.

With channels last and groups without a fast kernel, it slices images by group, pads channels,
joins weights and runs dense kernels (``nhwcSliceCKernel``, ``tensorTransformGeneric``,
``wgrad_alg0_engine_NHWC``); gradients in f32 of channels-first images run on the plain cores.
The choice among them changes from size to size; only the order of magnitude is priced: a start,
bytes at a small share of DRAM bandwidth, and FLOP of channels padded to tiles.

Constants: H100 SXM 80 GB, torch 2.11, cuDNN 9.19; 59 rows of four groups each, with mean errors of
16 to 38 %; held-out ones 21 to 51 %, except for f32 forward (113 %, three rows).
"""

from __future__ import annotations

import math

from msgspec import Struct

from costmodels.formulas.elements import channels_last
from costmodels.formulas.grouped import has_fast_kernel
from costmodels.formulas.intervals import UNKNOWN
from costmodels.formulas.machine import Machine, shape_text, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.points.point_values import to_int
from irgraph.ir.tensor import Tensor

TARGET = "sm_90"
NOTE = "sliced by group, padded and joined, or on the plain cores (cuDNN 9.19, H100, four groups)"
MAX_DIRECT_CHANNELS = 2
"""Number of input and output channels of a group up to which forward passes use a direct kernel."""


class GroupedConvLaw(Struct, frozen=True):
    """Constants of a convolution or of one of its gradients.

    Attributes:
        start: microseconds in which all its kernels start and end.
        share: share of DRAM bandwidth at which the image and the result move.
        rate: TFLOP/s over padded channels.
        deep: multiple to which a group's channels times window elements are padded.
    """

    start: float
    share: float
    rate: float
    deep: int = 128


WIDE = 64
"""Multiple to which result channels of a group are padded."""

LAST = {
    ("f16", False): GroupedConvLaw(27.0, 0.37, 119.0, 64),
    ("f32", False): GroupedConvLaw(36.0, 0.57, 78.0, 64),
    ("f16", True): GroupedConvLaw(34.0, 0.093, 129.0),
    ("f32", True): GroupedConvLaw(59.0, 0.19, 70.0),
}
"""Laws of channels-last images, by type and whether it is a gradient."""
FIRST, FIRST_EVEN, EVEN = (
    GroupedConvLaw(55.0, 0.028, math.inf),
    GroupedConvLaw(55.0, 0.051, math.inf),
    1.25,
)
"""Laws of f32 gradients of channels-first images, and of groups with at most ``EVEN`` output
channels for each input channel (two long rows; a RegNet-Y's step in f32 allows no more)."""
MEASURED_SMS, MEASURED_CLOCK = 132, 1980
"""Multiprocessors and clock, in MHz, of the measured card; rates of others scale with both."""


def grouped_on_hopper(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine
) -> tuple[Kernel, ...]:
    """Return the kernels of a grouped convolution without a fast kernel, as one."""
    applies = machine.sheet.target == TARGET and not machine.software.slow_grouped_last
    width = int(weight.shape[1])
    groups = int(data.shape[1]) // max(width, 1)
    if not applies or machine.paper or data.rank != 4 or groups == 1 or width == 1:
        return ()
    outer, gradient = int(weight.shape[0]) // groups, name != "conv"
    dtype = "f16" if data.dtype == "bf16" else data.dtype
    is_direct = not gradient and width <= MAX_DIRECT_CHANNELS >= outer
    law: GroupedConvLaw | None
    if not channels_last(data):
        law = FIRST_EVEN if outer <= EVEN * width else FIRST
        law = law if gradient and dtype == "f32" else None
    else:
        law = (
            None
            if is_direct or has_fast_kernel(data, weight, machine)
            else LAST.get((dtype, gradient))
        )
    if law is None:
        return ()
    pixels = result.numel // to_int(result.shape[1])
    padded_depth = -(-width * int(math.prod(weight.shape[2:])) // law.deep) * law.deep
    flop = 2.0 * groups * pixels * -(-outer // WIDE) * WIDE * padded_depth
    rate = law.rate * machine.sheet.sms / MEASURED_SMS * machine.sheet.clock / MEASURED_CLOCK
    time = law.start + machine.stream(traffic(data, result), law.share) + flop / rate / 1e6
    text = f"{name} {shape_text(data)} * {shape_text(weight)}"
    return (work("conv", text, time, UNKNOWN, NOTE, outside=True),)
