"""Batch norm by torch's own kernels over rows of contiguous channels.

cuDNN accepts no matrices. A block has up to 32 channels and 512 threads, and iterates over its
rows; from eight blocks for the same channels on, up to 128 blocks share the rows and synchronise
through memory (Normalization.cuh, ``flexible_launch_configs``). Measured: H100 SXM 80 GB, torch
2.11, 32 to 32,000 rows of 16 to 4,000 channels.
"""

from __future__ import annotations

from msgspec import Struct

from costmodels.formulas.machine import Machine
from costmodels.formulas.serial import START, stream_time
from irgraph.ir.points.point_values import if_else, maximum, minimum, power_of_two

TILE, BLOCK, LOOP = 32, 512, 16
"""Channels of a block, its threads, and the minimum number of rows of each thread."""

MAX_BLOCKS, MIN_SHARING_BLOCKS = 128, 8
"""Maximum number of blocks for the same channels, and the minimum number that share rows."""

ROWS_AT_ONCE = 4
"""Rows that a thread reads in one step."""


class ChannelLaw(Struct, frozen=True):
    """Constants of a kernel over rows of channels.

    Attributes:
        step: cycles of a thread's four rows, in 32 bits and in 16.
        rate: elements a cycle and multiprocessor, likewise.
        passes: number of times that the data is read for the sums, and moved for the result.
        bytes_rate: bytes per cycle and multiprocessor of both, unless memory is slower.
    """

    step: tuple[float, float]
    rate: tuple[float, float]
    passes: tuple[int, int]
    bytes_rate: float


FORWARD = ChannelLaw((1020, 1880), (3.27, 1.07), (1, 2), 8.5)
BACKWARD = ChannelLaw((1080, 1080), (14.4, 1.56), (2, 3), 9.9)

MEETING_TIME = 1.3
"""Microseconds to synchronise blocks that share rows, and to clear their counters before."""

LAW = (
    "torch's blocks of 32 channels, by cycles of four rows a thread, or bytes a cycle, "
    "or bytes / bandwidth (measured: H100 SXM 80 GB, torch 2.11)"
)


def thread_steps(rows: int, channels: int) -> tuple[int, object]:
    """Return the number of steps of a thread, and whether blocks share rows."""
    width = minimum(power_of_two(channels), TILE)
    height = minimum(power_of_two(-(-rows // LOOP)), BLOCK // width)
    blocks = minimum(-(-rows // (height * LOOP)), MAX_BLOCKS)
    shares_rows = blocks >= MIN_SHARING_BLOCKS
    return -(-rows // (height * if_else(shares_rows, blocks, 1) * ROWS_AT_ONCE)), shares_rows


def sums_time(law: ChannelLaw, rows: int, channels: int, size: int, machine: Machine) -> float:
    """Return microseconds of the kernel that sums up all rows."""
    narrow, elements = 0 if size >= 4 else 1, rows * channels
    steps, shares_rows = thread_steps(rows, channels)
    memory_time = stream_time(machine, law.passes[0] * elements * size, law.bytes_rate)
    rate = machine.cycles(elements / machine.sheet.sms / law.rate[narrow])
    start = START + if_else(shares_rows, MEETING_TIME, 0.0)
    return start + maximum(machine.cycles(steps * law.step[narrow]), rate, memory_time)


def result_time(law: ChannelLaw, rows: int, channels: int, size: int, machine: Machine) -> float:
    """Return microseconds of the kernel that normalises or computes the data's gradient."""
    return START + stream_time(machine, law.passes[1] * rows * channels * size, law.bytes_rate)
