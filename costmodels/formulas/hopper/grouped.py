"""Grouped convolutions on Hopper for which cuDNN 9 has no kernel: channels last, and f32 gradients.

With channels last and other groups than the fast ones, it slices images by group, pads channels,
joins weights and runs dense kernels (``nhwcSliceCKernel``, ``tensorTransformGeneric``,
``wgrad_alg0_engine_NHWC``); gradients in f32 of channels-first images run on the plain cores.
Which of them it takes changes from size to size, so that nothing but their order is priced: a
start, bytes at a small share of DRAM bandwidth, and flop of channels padded to tiles.

Constants: H100 SXM 80 GB, torch 2.11, cuDNN 9.19; 59 rows of four groups each, which come out
16 to 38 % off on average; held out ones 21 to 51 %, but for f32 forward (113 %, three rows).
"""

from __future__ import annotations

import math

from msgspec import Struct

from costmodels.formulas.elements import channels_last
from costmodels.formulas.grouped import fast
from costmodels.formulas.intervals import UNKNOWN
from costmodels.formulas.machine import Machine, shape_text, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.points.point_values import to_int
from irgraph.ir.tensor import Tensor

TARGET = "sm_90"
NOTE = "sliced by group, padded and joined, or on the plain cores (cuDNN 9.19, H100, four groups)"
FEWEST = 2
"""Channels of a group, read and written, up to which forward passes take a direct kernel."""


class GroupedConvLaw(Struct, frozen=True):
    """What a convolution or one of its gradients takes.

    Attributes:
        start: microseconds in which all its kernels start and end.
        share: of DRAM bandwidth at which the image and the result move.
        rate: TFLOP/s over padded channels.
        deep: channels times window elements of a group to whose multiples they are padded.
    """

    start: float
    share: float
    rate: float
    deep: int = 128


WIDE = 64
"""Result channels of a group to whose multiples they are padded."""

LAST = {
    ("f16", False): GroupedConvLaw(27.0, 0.37, 119.0, 64),
    ("f32", False): GroupedConvLaw(36.0, 0.57, 78.0, 64),
    ("f16", True): GroupedConvLaw(34.0, 0.093, 129.0),
    ("f32", True): GroupedConvLaw(59.0, 0.19, 70.0),
}
"""By type, and whether it is a gradient: images whose channels are last."""
FIRST, FIRST_EVEN, EVEN = (
    GroupedConvLaw(55.0, 0.028, math.inf),
    GroupedConvLaw(55.0, 0.051, math.inf),
    1.25,
)
"""Gradients in f32 of images whose channels come first, and of groups that make up to ``EVEN``
times the channels that they read (two long rows; a RegNet-Y's step in f32 leaves room for no
more)."""
MEASURED_SMS, MEASURED_CLOCK = 132, 1980
"""Of the card on which these rates were measured; others' go by both."""


def grouped_on_hopper(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine
) -> tuple[Kernel, ...]:
    """Return the kernels of a grouped convolution that has none of its own, as one."""
    known = machine.sheet.target == TARGET and not machine.software.slow_grouped_last
    width = int(weight.shape[1])
    groups = int(data.shape[1]) // max(width, 1)
    if not known or machine.paper or data.rank != 4 or groups == 1 or width == 1:
        return ()
    outer, gradient = int(weight.shape[0]) // groups, name != "conv"
    dtype = "f16" if data.dtype == "bf16" else data.dtype
    few = not gradient and width <= FEWEST >= outer
    slow: GroupedConvLaw | None
    if not channels_last(data):
        slow = FIRST_EVEN if outer <= EVEN * width else FIRST
        slow = slow if gradient and dtype == "f32" else None
    else:
        slow = None if few or fast(data, weight, machine) else LAST.get((dtype, gradient))
    if slow is None:
        return ()
    pixels = result.numel // to_int(result.shape[1])
    deep = -(-width * int(math.prod(weight.shape[2:])) // slow.deep) * slow.deep
    flop = 2.0 * groups * pixels * -(-outer // WIDE) * WIDE * deep
    rate = slow.rate * machine.sheet.sms / MEASURED_SMS * machine.sheet.clock / MEASURED_CLOCK
    time = slow.start + machine.stream(traffic(data, result), slow.share) + flop / rate / 1e6
    text = f"{name} {shape_text(data)} * {shape_text(weight)}"
    return (work("conv", text, time, UNKNOWN, NOTE, outside=True),)
