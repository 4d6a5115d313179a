"""Group norm: moments of each group by one block, factors of each channel, and the result.

torch, group_norm_kernel.cu. Constants measured: H100 SXM 80 GB, torch 2.11, one group of 1,000 to
40 million elements.
"""

from __future__ import annotations

from msgspec import Struct

from costmodels.formulas.machine import Machine
from costmodels.formulas.serial import START, block_rounds, step_time, stream_time
from irgraph.ir.points.point_values import if_else, maximum

WIDE, WARP = 512, 32
"""Threads of a block; shorter rows have one warp."""

CAST_RATE, CAST_START = 0.5, 2.0
"""Elements per cycle and multiprocessor of torch's elementwise kernel that reads both 16 and 32
bits and converts each by its type, and the microseconds by which it starts later."""

CHANNEL, CHANNEL_STEP = 156, 495
"""Cycles on its multiprocessor of a channel's block that sums data times gradient, and of one of
its steps."""

FACTOR_STEP = 355
"""Cycles of a step of the block that joins the sums of a group's channels."""

RATE = 9.4
"""Bytes per cycle and multiprocessor of sums and results, unless memory is slower."""

LAW = (
    "a block a group or channel, by cycles of a step, bytes a cycle, or bytes / bandwidth "
    "(measured: H100 SXM 80 GB, torch 2.11)"
)


class NormGroups(Struct, frozen=True):
    """Data of group norm: ``blocks`` groups of ``channels`` with ``pixels`` each."""

    blocks: int
    channels: int
    pixels: int
    size: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.blocks * self.channels * self.pixels

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * self.size


def moments_time(data: NormGroups, machine: Machine) -> float:
    """Return microseconds of the mean and deviation of each group."""
    group_elements = data.channels * data.pixels
    steps = if_else(
        group_elements < WIDE,
        block_rounds(machine, data.blocks, WARP) * -(-group_elements // WARP),
        block_rounds(machine, data.blocks, WIDE) * -(-group_elements // WIDE),
    )
    return START + maximum(
        stream_time(machine, data.nbytes, RATE), steps * step_time(machine, data.nbytes)
    )


def result_time(data: NormGroups, tensors: int, machine: Machine) -> float:
    """Return microseconds of the elementwise kernel that moves ``tensors``, the result included."""
    memory_time = stream_time(machine, tensors * data.nbytes, RATE)
    if data.size >= 4:
        return START + memory_time
    casts = machine.cycles(data.elements / machine.sheet.sms / CAST_RATE)
    return START + CAST_START + maximum(memory_time, casts)


def sums_time(data: NormGroups, machine: Machine) -> float:
    """Return microseconds of the sums of each channel's gradient, and of its product with data."""
    threads = if_else(data.pixels < WIDE, WARP, WIDE)
    channels = data.blocks * data.channels
    memory_time = stream_time(machine, 2 * data.nbytes, RATE)
    blocks = machine.cycles(CHANNEL * channels / machine.sheet.sms)
    return (
        START
        + maximum(memory_time, blocks)
        + machine.cycles(CHANNEL_STEP * -(-data.pixels // threads))
    )


def factors_time(data: NormGroups, machine: Machine) -> float:
    """Return microseconds of the two factors of each group, from its channels' sums."""
    threads = if_else(data.channels < WIDE, WARP, WIDE)
    return START + machine.cycles(FACTOR_STEP * -(-data.channels // threads))
