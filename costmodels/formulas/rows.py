"""Rows picked and added at computed positions, where kernels were measured: Hopper, torch 2.11.

All constants: one H100 SXM 80 GB, torch 2.11, CUDA 13.
"""

from __future__ import annotations

import math

from costmodels.formulas.machine import Machine
from costmodels.formulas.offsets import BROADCAST_PER_CYCLE
from irgraph.ir.points.point_values import if_else, map_points, maximum, to_float

MEASURED = ("hopper", "blackwell")
"""Architectures that the laws below hold for; Blackwell is taken as Hopper."""

PICKED = "blocks or elements started a cycle, never below memory (measured: H100, torch 2.11)"
ADDED_TO = (
    "sectors added to a cycle and lines of the most popular row, never below memory (measured: "
    "H100, torch 2.11)"
)

BLOCK_CYCLES = 160
"""Cycles between two blocks that a multiprocessor starts, however little each does (105.6 us for
173,614 that copy a row of eight elements each)."""

ALIGNED, BLOCK_BYTES = 16, 4096
"""Bytes of which rows are multiples that are copied by blocks of their own, and most bytes of one
block (torch, IndexKernelUtils.cu, ``vectorized_gather_kernel``)."""

FEWEST, ALONE = 4.5, 2.0
"""Microseconds of ``_scatter_gather_elementwise_kernel`` that does next to nothing (3.7 to 4.5 out
of the cache, 5 to 9 out of memory), and beside its elements where there are many."""

SECTOR, LINE = 32, 128
"""Bytes of an atomic update in the second-level cache, and of a line."""

SECTORS_A_CYCLE, LINE_CYCLES = 0.13, 3.6
"""Sectors that are added to for each multiprocessor and cycle (234,551 rows of ten elements in 13.5
us), and cycles of each update of the same line (60,400 of a row of three elements in 112 us)."""


ADDED = 0.54
"""Elements that a multiprocessor adds in a cycle by ``index_add``, which computes the place of each
(231 us for 30.8 million at random rows, 74 for 10.7)."""


def measured(machine: Machine) -> bool:
    """Return whether the laws of this module hold for a card."""
    return not machine.paper and machine.sheet.architecture in MEASURED


def blocks_time(blocks: float, machine: Machine) -> float:
    """Return microseconds to start so many small blocks, where that was measured, or else none."""
    if not measured(machine):
        return 0.0
    return machine.cycles(blocks * BLOCK_CYCLES / machine.sheet.sms)


def elements_time(elements: float, moved: float, machine: Machine) -> float:
    """Return microseconds of the kernel that picks or adds each element by itself."""
    each_alone = machine.cycles(elements / (BROADCAST_PER_CYCLE * machine.sheet.sms))
    return maximum(maximum(each_alone, machine.stream(moved)) + ALONE, FEWEST)


def picked_time(count: int, width: int, size: int, moved: float, machine: Machine) -> float:
    """Return microseconds to copy ``count`` rows of ``width`` elements that move bytes.

    Aligned rows are copied by a block each, others element by element.
    """
    row = width * size
    blocks = count * -(-row // BLOCK_BYTES)
    aligned = maximum(machine.stream(moved), blocks_time(blocks, machine)) + machine.start
    return if_else(row % ALIGNED == 0, aligned, elements_time(count * width, moved, machine))


def _touched(row: int, unit: int) -> float:
    """Return how many units packed rows touch on average, beginning anywhere in one."""
    return to_float((row - map_points(math.gcd, row, unit) + unit) / unit)


def atomic_time(
    count: int, row: int, chance: float, machine: Machine, walked: float = 0.0
) -> float:
    """Return microseconds of atomic additions to rows of ``row`` bytes.

    The cache adds so many sectors a cycle, and those of one line one after another: ``chance`` is
    that of the row that is added to most often. ``walked``: elements whose places are computed.
    """
    rate = SECTORS_A_CYCLE * machine.sheet.sms
    sectors = count * _touched(row, SECTOR) / rate
    all_rows = machine.cycles(maximum(sectors, walked / (ADDED * machine.sheet.sms)))
    hottest = machine.cycles(count * chance * _touched(row, LINE) * LINE_CYCLES)
    return to_float(map_points(math.hypot, all_rows, hottest))
