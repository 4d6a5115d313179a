"""Group norm: moments of each group by one block, factors of each channel, and the result.

torch, group_norm_kernel.cu. Constants measured: H100 SXM 80 GB, torch 2.11, one group of 1,000 to
40 million elements.
"""

from __future__ import annotations

from msgspec import Struct

from costmodels.formulas.machine import Machine
from costmodels.formulas.serial import START, rounds, step, streamed
from irgraph.ir.points.point_values import if_else, maximum

WIDE, WARP = 512, 32
"""Threads of a block; shorter rows have one warp."""

CAST_RATE, CAST_START = 0.5, 2.0
"""Elements a cycle and multiprocessor of torch's element by element kernel that reads 16 bits
beside 32 and converts each by its type, and the microseconds by which it starts later."""

CHANNEL, CHANNEL_STEP = 156, 495
"""Cycles on its multiprocessor of a channel's block that sums data times gradient, and of each of
its steps."""

FACTOR_STEP = 355
"""Cycles of a step of the block that joins the sums of a group's channels."""

RATE = 9.4
"""Bytes a cycle and multiprocessor that sums and results reach, if the memory is as fast."""

LAW = (
    "a block a group or channel, by cycles of a step, bytes a cycle, or bytes / bandwidth "
    "(measured: H100 SXM 80 GB, torch 2.11)"
)


class Groups(Struct, frozen=True):
    """Data of group norm: ``blocks`` groups in all, of ``channels`` that have ``pixels`` each."""

    blocks: int
    channels: int
    pixels: int
    size: int

    @property
    def elements(self) -> int:
        """All elements."""
        return self.blocks * self.channels * self.pixels

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.elements * self.size


def moments_time(data: Groups, machine: Machine) -> float:
    """Return microseconds of the mean and deviation of each group."""
    each = data.channels * data.pixels
    walks = if_else(
        each < WIDE,
        rounds(machine, data.blocks, WARP) * -(-each // WARP),
        rounds(machine, data.blocks, WIDE) * -(-each // WIDE),
    )
    return START + maximum(streamed(machine, data.nbytes, RATE), walks * step(machine, data.nbytes))


def result_time(data: Groups, tensors: int, machine: Machine) -> float:
    """Return microseconds of the result, element by element from ``tensors`` less one others."""
    moved = streamed(machine, tensors * data.nbytes, RATE)
    if data.size >= 4:
        return START + moved
    casts = machine.cycles(data.elements / machine.sheet.sms / CAST_RATE)
    return START + CAST_START + maximum(moved, casts)


def sums_time(data: Groups, machine: Machine) -> float:
    """Return microseconds of the sums of each channel's gradient, and of its product with data."""
    threads = if_else(data.pixels < WIDE, WARP, WIDE)
    channels = data.blocks * data.channels
    moved = streamed(machine, 2 * data.nbytes, RATE)
    blocks = machine.cycles(CHANNEL * channels / machine.sheet.sms)
    return (
        START + maximum(moved, blocks) + machine.cycles(CHANNEL_STEP * -(-data.pixels // threads))
    )


def factors_time(data: Groups, machine: Machine) -> float:
    """Return microseconds of the two factors of each group, from its channels' sums."""
    threads = if_else(data.channels < WIDE, WARP, WIDE)
    return START + machine.cycles(FACTOR_STEP * -(-data.channels // threads))
