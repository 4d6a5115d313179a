"""Times of torch's running sums along rows (ScanUtils.cuh, ``tensor_kernel_scan_innermost``).

The threads of a block, 512, are divided among rows and columns by their ratio, in unsigned numbers:
with about a thousand times as many rows as columns all threads get one row. A block processes its
rows in chunks of two elements a thread, with a sweep up and a sweep down each chunk.
"""

from __future__ import annotations

from costmodels.formulas.machine import Machine
from costmodels.formulas.serial import thread_slots
from irgraph.ir.points.point_values import map_points, maximum, minimum

THREADS, MIN_LOG_THREADS, MAX_LOG_THREADS = 512, 4, 9

CHUNK_CYCLES, NEIGHBOUR_CYCLES, DOUBLING_SHARE = 1580.0, 790.0, 0.05
"""Cycles of a chunk, of each concurrent block of its multiprocessor, and the share that each
doubling of the threads of a row beyond 16 adds (measured: H100 SXM 80 GB, torch 2.11: 3,000 rows of
3,600 in 151 us, 57,000 of 4,777 in 1,376, 7,228 of 2 in 43)."""

START_SHARE = 0.33
"""Share of the launch floor to add (same source: 1.7 us for a handful of values)."""


def scan_time(rows: int, columns: int, machine: Machine) -> float:
    """Return microseconds of running sums along the contiguous axis."""
    log = map_points(_log_threads, rows, columns)
    across = map_points(_power_of_two, log)
    blocks = -(-rows // (THREADS // across))
    resident_blocks = thread_slots(machine) // THREADS
    concurrent_blocks = minimum(-(-blocks // machine.sheet.sms), resident_blocks)
    waves = maximum(blocks / (machine.sheet.sms * resident_blocks), 1.0)
    chunks = -(-columns // (2 * across))
    sweep = (CHUNK_CYCLES + NEIGHBOUR_CYCLES * concurrent_blocks) * (
        1.0 + DOUBLING_SHARE * (log - MIN_LOG_THREADS)
    )
    return machine.cycles(waves * chunks * sweep) + START_SHARE * machine.start


def _log_threads(rows: int, columns: int) -> int:
    """Return the logarithm of a block's threads along a row, as torch computes it."""
    double_log = MAX_LOG_THREADS + (columns - 1).bit_length() - (rows - 1).bit_length()
    if double_log < 0:  # the unsigned difference wraps round
        return MAX_LOG_THREADS
    return min(max(MIN_LOG_THREADS, double_log // 2), MAX_LOG_THREADS)


def _power_of_two(log: int) -> int:
    return 1 << int(log)
