"""Rows picked and added at computed positions, where kernels were measured: Hopper, torch 2.11.

All constants: one H100 SXM 80 GB, torch 2.11, CUDA 13.
"""

from __future__ import annotations

import math

from costmodels.formulas.machine import Machine
from costmodels.formulas.offsets import BROADCAST_PER_CYCLE
from irgraph.ir.points.point_values import if_else, map_points, maximum, to_float

MEASURED_ARCHITECTURES = ("hopper", "blackwell")
"""Architectures that the laws below apply to; Blackwell is assumed to equal Hopper."""

PICKED = "blocks or elements started a cycle, never below memory (measured: H100, torch 2.11)"
ADDED_TO = (
    "sectors added to a cycle and lines of the most popular row, never below memory (measured: "
    "H100, torch 2.11)"
)

BLOCK_CYCLES = 160
"""Cycles between the starts of two blocks on a multiprocessor, regardless of their work (105.6 us
for 173,614 that copy a row of eight elements each)."""

ALIGNED, BLOCK_BYTES = 16, 4096
"""Alignment in bytes of rows that separate blocks copy, and maximum number of bytes of a block
(torch, IndexKernelUtils.cu, ``vectorized_gather_kernel``)."""

MIN_SCATTER_TIME, SCATTER_START = 4.5, 2.0
"""Minimum microseconds of ``_scatter_gather_elementwise_kernel`` (3.7 to 4.5 from the cache, 5 to 9
from memory), and microseconds to add to the time of its elements."""

SECTOR, LINE = 32, 128
"""Bytes of an atomic update in the second-level cache, and of a line."""

SECTORS_A_CYCLE, LINE_CYCLES = 0.13, 3.6
"""Updated sectors per cycle and multiprocessor (234,551 rows of ten elements in 13.5 us), and
cycles of each update of the same line (60,400 of a row of three elements in 112 us)."""


ADD_RATE = 0.54
"""Elements that a multiprocessor adds in a cycle by ``index_add``, which computes the offset of
each (231 us for 30.8 million at random rows, 74 for 10.7)."""


def has_row_laws(machine: Machine) -> bool:
    """Return whether the laws of this module apply to a card."""
    return not machine.paper and machine.sheet.architecture in MEASURED_ARCHITECTURES


def blocks_time(blocks: float, machine: Machine) -> float:
    """Return microseconds to start ``blocks`` small blocks; 0 for unmeasured cards."""
    if not has_row_laws(machine):
        return 0.0
    return machine.cycles(blocks * BLOCK_CYCLES / machine.sheet.sms)


def elements_time(elements: float, nbytes: float, machine: Machine) -> float:
    """Return microseconds of the kernel that picks or adds elements individually."""
    offset_time = machine.cycles(elements / (BROADCAST_PER_CYCLE * machine.sheet.sms))
    return maximum(maximum(offset_time, machine.stream(nbytes)) + SCATTER_START, MIN_SCATTER_TIME)


def picked_time(count: int, width: int, size: int, nbytes: float, machine: Machine) -> float:
    """Return microseconds to copy ``count`` rows of ``width`` elements, moving ``nbytes``.

    A block copies each aligned row; others are copied element by element.
    """
    row = width * size
    blocks = count * -(-row // BLOCK_BYTES)
    aligned = maximum(machine.stream(nbytes), blocks_time(blocks, machine)) + machine.start
    return if_else(row % ALIGNED == 0, aligned, elements_time(count * width, nbytes, machine))


def _units_per_row(row: int, unit: int) -> float:
    """Return the mean number of units of a packed row, which starts anywhere in one."""
    return to_float((row - map_points(math.gcd, row, unit) + unit) / unit)


def atomic_time(
    count: int, row: int, chance: float, machine: Machine, offset_elements: float = 0.0
) -> float:
    """Return microseconds of atomic additions to rows of ``row`` bytes.

    The cache updates sectors at a constant rate, but sectors of one line in sequence. ``chance`` is
    the probability of the most popular row, ``offset_elements`` the number of elements whose
    offsets are computed.
    """
    rate = SECTORS_A_CYCLE * machine.sheet.sms
    sectors = count * _units_per_row(row, SECTOR) / rate
    all_rows = machine.cycles(maximum(sectors, offset_elements / (ADD_RATE * machine.sheet.sms)))
    hottest = machine.cycles(count * chance * _units_per_row(row, LINE) * LINE_CYCLES)
    return to_float(map_points(math.hypot, all_rows, hottest))
