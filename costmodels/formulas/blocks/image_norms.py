"""Batch norm of channels-first images, in training: a block for each channel.

cuDNN (``1C11`` kernels), and torch's own kernels, leave multiprocessors idle if there are few
channels. cuDNN caches a channel in shared memory if it fits, and moves it once; otherwise it
reads the channel for the sums, and again for the result.
"""

from __future__ import annotations

import math

from costmodels.formulas.elements import channels_last
from costmodels.formulas.machine import SMALL, Machine
from costmodels.formulas.serial import START, has_gpu_laws
from irgraph.ir.points.point_values import maximum, minimum
from irgraph.ir.tensor import Tensor

FORWARD_PASSES, BACKWARD_PASSES = 3, 5
"""Number of times that the data is moved: read for the statistics, read and written to normalise;
the gradient reads data and gradient twice, for the sums and for the result, and writes once."""

ALONE_RATE, AMPERE_ALONE_RATE, SHARED_RATE = 1.75, 2.2, 3.3
"""Elements per cycle and pass of a batch norm's block that has a multiprocessor to itself, of the
same block forward in f32 from Ampere on, and of all blocks that share a multiprocessor. In
training cuDNN (``1C11`` kernels), and torch's own kernels, have one block for each channel unless
channels are last: 64 channels leave 44 of an A100's 108 multiprocessors idle. One block, traced
over 64 channels: 1.4 (V100) and 1.75 (A100) backward, 1.7 and 2.2 forward in f32; on A100 1.9 and
1.6 in f16: narrower elements gain nothing. Shared: a step of ResNet-50 on A100 in f16 (public torch
profile, batch 128, NCHW), over all layers with more channels."""

OLDER_ARCHITECTURES = ("pascal", "volta", "turing")

FEW_CHANNELS, CHANNEL_POWER = 64, 0.42
"""Number of channels below which a block gets faster, and the exponent of that speed-up: the fewer
blocks run, the more memory bandwidth each has. Fitted to steps of six networks with few channels
that ``irgraph evaluate steps`` does not compare (timm, trained on an RTX 3090, NCHW:
docs/costs.md)."""

BLOCKS_PER_MULTIPROCESSOR = 2
"""Number of blocks with cached channels on a multiprocessor."""

MAX_CACHED_BYTES = 48 * 1024
"""Maximum bytes of a channel, and of its gradient, that blocks cache: the shared memory available
to any block. In traced ResNets (V100, RTX 2080 Ti, A100) 25 KB are cached and 49 are not. cuDNN 9
caches up to half of a multiprocessor's shared memory: 98 KB on H100, by the names of kernels."""

CACHED_SHARE, CACHED_TURN_CYCLES = 0.8, 1700
"""Share of the bandwidth of kernels that cache channels, and cycles of each turn of their blocks.
Traced: 0.8 to 2 us a turn on V100 and 1.1 on RTX 2080 Ti; A100's are predicted within 20 %."""

CACHED_FORMULA = (
    "channels kept in shared memory: bytes once, and a start for each turn of the blocks"
)


def blocks_time(target: Tensor, passes: int, machine: Machine) -> float:
    """Return microseconds of a block for each channel; 0 if channels are last."""
    if not has_gpu_laws(machine) or target.rank < 3 or channels_last(target):
        return 0.0
    channels = maximum(target.shape[1], 1)
    is_newer = machine.sheet.architecture not in OLDER_ARCHITECTURES
    is_faster = is_newer and passes == FORWARD_PASSES and target.itemsize >= 4
    alone_rate = (AMPERE_ALONE_RATE if is_faster else ALONE_RATE) * maximum(
        FEW_CHANNELS / channels, 1.0
    ) ** CHANNEL_POWER
    rate = minimum(alone_rate, SHARED_RATE / -(-channels // machine.sheet.sms))
    return machine.cycles(passes * target.numel / channels / rate) + SMALL


def cached_channels_time(target: Tensor, tensors: int, machine: Machine) -> float:
    """Return microseconds of blocks that cache their channel; 0 if channels are not cached.

    ``tensors`` is the number of tensors to read; one is written. Newer kernels move 16 bits in
    pairs.
    """
    cuda = machine.sheet.target.startswith("sm_") and target.dtype != "bf16"
    if not (cuda and has_gpu_laws(machine)) or target.rank < 3 or channels_last(target):
        return 0.0
    channels = maximum(target.shape[1], 1)
    elements, size = target.numel // channels, target.itemsize
    if tensors * elements * size > _max_cached_bytes(machine):
        return 0.0
    pairs = (
        size == 2
        and machine.software.caches_large_channels
        and math.prod(target.shape[2:]) % 2 == 0
    )
    turns = -(-channels // (BLOCKS_PER_MULTIPROCESSOR * machine.sheet.sms))
    passes = tensors + 1
    compute_time = machine.cycles(
        turns * passes * elements / (2 * ALONE_RATE if pairs else ALONE_RATE)
    )
    memory_time = machine.stream(passes * target.numel * size, CACHED_SHARE)
    return START + turns * machine.cycles(CACHED_TURN_CYCLES) + maximum(memory_time, compute_time)


def _max_cached_bytes(machine: Machine) -> float:
    """Return the maximum number of bytes that a block caches."""
    if not machine.software.caches_large_channels:
        return MAX_CACHED_BYTES
    return maximum(MAX_CACHED_BYTES, (machine.sheet.shared_bytes or 0) / BLOCKS_PER_MULTIPROCESSOR)
