"""Batch norm of images whose channels come first, in training: a block for each channel.

cuDNN (``1C11`` kernels), and torch's own kernels, leave multiprocessors idle where channels are
few. cuDNN keeps a channel in shared memory where it fits there, and moves it once; otherwise it
reads it for the sums, and again for the result.
"""

from __future__ import annotations

import math

from costmodels.formulas.elements import channels_last
from costmodels.formulas.machine import SMALL, Machine
from costmodels.formulas.serial import START, has_gpu_laws
from irgraph.ir.points.point_values import maximum, minimum
from irgraph.ir.tensor import Tensor

FORWARD_PASSES, BACKWARD_PASSES = 3, 5
"""Times that the data is moved: read for the statistics, read and written to normalise; the
gradient reads data and gradient twice, for the sums and for the result, and writes once."""

ALONE, AMPERE_ALONE, SHARED = 1.75, 2.2, 3.3
"""Elements a cycle and pass of a batch norm's block that has a multiprocessor to itself, the same
forward in f32 from Ampere on, and of all blocks that share one. In training cuDNN (``1C11``
kernels), and torch's own kernels, have one block for each channel unless channels are last: 64
channels leave 44 of an A100's 108 multiprocessors idle. Traced alone, over 64 channels: 1.4 (V100)
and 1.75 (A100) backward, 1.7 and 2.2 forward in f32; on A100 1.9 and 1.6 in f16, so that narrower
elements gain nothing. Shared: a step of ResNet-50 on A100 in f16 (public torch profile, batch 128,
NCHW), over all layers with more channels."""

OLDER = ("pascal", "volta", "turing")

CROWD, LONELY = 64, 0.42
"""Channels below which a block gets faster, and the power of their number by which: the fewer
blocks run, the more of the memory each has. Fitted to steps of six networks with few channels that
``irgraph evaluate steps`` does not compare (timm, trained on an RTX 3090, NCHW: docs/costs.md)."""

TOGETHER = 2
"""Blocks that keep channels of a multiprocessor."""

KEPT = 48 * 1024
"""Most bytes of a channel, and of its gradient, that blocks keep: what shared memory gives any
block. In traced ResNets (V100, RTX 2080 Ti, A100) 25 KB are kept and 49 are not. cuDNN 9 keeps up
to half of a multiprocessor's shared memory: 98 KB on H100, by the names of kernels."""

KEEP_SHARE, KEEP_TURN = 0.8, 1700
"""Share of the bandwidth of kernels that keep channels, and cycles that each turn of their blocks
adds. Traced: 0.8 to 2 us a turn on V100 and 1.1 on RTX 2080 Ti; A100's come out within 20 %."""

KEEP_FORMULA = "channels kept in shared memory: bytes once, and a start for each turn of the blocks"


def blocks_time(target: Tensor, passes: int, machine: Machine) -> float:
    """Return microseconds of a block for each channel; 0 where rows of channels are contiguous."""
    if not has_gpu_laws(machine) or target.rank < 3 or channels_last(target):
        return 0.0
    channels = maximum(target.shape[1], 1)
    newer = machine.sheet.architecture not in OLDER
    faster = newer and passes == FORWARD_PASSES and target.itemsize >= 4
    alone = (AMPERE_ALONE if faster else ALONE) * maximum(CROWD / channels, 1.0) ** LONELY
    rate = minimum(alone, SHARED / -(-channels // machine.sheet.sms))
    return machine.cycles(passes * target.numel / channels / rate) + SMALL


def kept_time(target: Tensor, tensors: int, machine: Machine) -> float:
    """Return microseconds of blocks that keep their channel; 0 where none does.

    ``tensors`` are those that are read; one is written. Kernels for pairs of 16 bits are newer.
    """
    cuda = machine.sheet.target.startswith("sm_") and target.dtype != "bf16"
    if not (cuda and has_gpu_laws(machine)) or target.rank < 3 or channels_last(target):
        return 0.0
    channels = maximum(target.shape[1], 1)
    elements, size = target.numel // channels, target.itemsize
    if tensors * elements * size > _most_kept(machine):
        return 0.0
    pairs = size == 2 and machine.software.keeps_more and math.prod(target.shape[2:]) % 2 == 0
    turns = -(-channels // (TOGETHER * machine.sheet.sms))
    passes = tensors + 1
    busy = machine.cycles(turns * passes * elements / (2 * ALONE if pairs else ALONE))
    moved = machine.stream(passes * target.numel * size, KEEP_SHARE)
    return START + turns * machine.cycles(KEEP_TURN) + maximum(moved, busy)


def _most_kept(machine: Machine) -> float:
    """Return the bytes that a block keeps at most."""
    if not machine.software.keeps_more:
        return KEPT
    return maximum(KEPT, (machine.sheet.shared_bytes or 0) / TOGETHER)
