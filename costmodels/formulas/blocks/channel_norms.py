"""Batch norm by torch's own kernels over rows of channels, which lie next to each other.

cuDNN takes no matrices. A block has up to 32 channels and 512 threads, and walks through its rows;
from eight blocks for the same channels on, rows are shared by up to 128 of them, which meet through
memory (Normalization.cuh, ``flexible_launch_configs``). Measured: H100 SXM 80 GB, torch 2.11, 32 to
32,000 rows of 16 to 4,000 channels.
"""

from __future__ import annotations

from msgspec import Struct

from costmodels.formulas.machine import Machine
from costmodels.formulas.serial import START, streamed
from irgraph.ir.points.point_values import if_else, maximum, minimum, power_of_two

TILE, BLOCK, LOOP = 32, 512, 16
"""Channels of a block, its threads, and the rows that each of them has at least."""

HIGHEST, SHARED_FROM = 128, 8
"""Most blocks for the same channels, and how many it takes to share rows at all."""

AT_ONCE = 4
"""Rows that a thread reads at a time."""


class Channels(Struct, frozen=True):
    """A kernel over rows of channels.

    Attributes:
        step: cycles of a thread's four rows, in 32 bits and in 16.
        rate: elements a cycle and multiprocessor, likewise.
        passes: times that the data is read for the sums, and moved for the result.
        bytes_rate: bytes a cycle and multiprocessor that they reach, if the memory is as fast.
    """

    step: tuple[float, float]
    rate: tuple[float, float]
    passes: tuple[int, int]
    bytes_rate: float


FORWARD = Channels((1020, 1880), (3.27, 1.07), (1, 2), 8.5)
BACKWARD = Channels((1080, 1080), (14.4, 1.56), (2, 3), 9.9)

MEET = 1.3
"""Microseconds in which blocks that share rows meet; a kernel clears first what they count by."""

LAW = (
    "torch's blocks of 32 channels, by cycles of four rows a thread, or bytes a cycle, "
    "or bytes / bandwidth (measured: H100 SXM 80 GB, torch 2.11)"
)


def walk(rows: int, channels: int) -> tuple[int, object]:
    """Return the steps of a thread, and whether blocks share rows."""
    wide = minimum(power_of_two(channels), TILE)
    high = minimum(power_of_two(-(-rows // LOOP)), BLOCK // wide)
    blocks = minimum(-(-rows // (high * LOOP)), HIGHEST)
    shared = blocks >= SHARED_FROM
    return -(-rows // (high * if_else(shared, blocks, 1) * AT_ONCE)), shared


def sums_time(law: Channels, rows: int, channels: int, size: int, machine: Machine) -> float:
    """Return microseconds of the kernel that sums up all rows."""
    narrow, elements = 0 if size >= 4 else 1, rows * channels
    steps, shared = walk(rows, channels)
    moved = streamed(machine, law.passes[0] * elements * size, law.bytes_rate)
    rate = machine.cycles(elements / machine.sheet.sms / law.rate[narrow])
    start = START + if_else(shared, MEET, 0.0)
    return start + maximum(machine.cycles(steps * law.step[narrow]), rate, moved)


def result_time(law: Channels, rows: int, channels: int, size: int, machine: Machine) -> float:
    """Return microseconds of the kernel that normalises, or that makes the data's gradient."""
    return START + streamed(machine, law.passes[1] * rows * channels * size, law.bytes_rate)
