"""How long torch's running sums along rows take (ScanUtils.cuh, ``tensor_kernel_scan_innermost``).

A block of 512 threads shares itself out to rows and columns by their ratio, in unsigned numbers: of
rows some thousand times as many as columns it gives all threads to one row. It goes along its rows
in chunks of two elements a thread, and sweeps up and down each of them.
"""

from __future__ import annotations

from costmodels.formulas.machine import Machine
from costmodels.formulas.serial import slots
from irgraph.ir.points.point_values import map_points, maximum, minimum

THREADS, LEAST_LOG, MOST_LOG = 512, 4, 9

CHUNK, BESIDE, DEEPER = 1580.0, 790.0, 0.05
"""Cycles of a chunk, of each block beside it on its multiprocessor, and what each doubling of the
threads of a row beyond 16 adds (measured: H100 SXM 80 GB, torch 2.11: 3,000 rows of 3,600 in 151
us, 57,000 of 4,777 in 1,376, 7,228 of 2 in 43)."""

START_SHARE = 0.33
"""Share of the launch floor that comes on top (same source: 1.7 us for a handful)."""


def scanning_time(rows: int, columns: int, machine: Machine) -> float:
    """Return microseconds of running sums along the contiguous axis."""
    log = map_points(_log_threads, rows, columns)
    across = map_points(_two_to, log)
    blocks = -(-rows // (THREADS // across))
    held = slots(machine) // THREADS
    beside = minimum(-(-blocks // machine.sheet.sms), held)
    waves = maximum(blocks / (machine.sheet.sms * held), 1.0)
    chunks = -(-columns // (2 * across))
    sweep = (CHUNK + BESIDE * beside) * (1.0 + DEEPER * (log - LEAST_LOG))
    return machine.cycles(waves * chunks * sweep) + START_SHARE * machine.start


def _log_threads(rows: int, columns: int) -> int:
    """Return the logarithm of a block's threads along a row, as torch works it out."""
    doubled = MOST_LOG + (columns - 1).bit_length() - (rows - 1).bit_length()
    if doubled < 0:  # the unsigned difference wraps round
        return MOST_LOG
    return min(max(LEAST_LOG, doubled // 2), MOST_LOG)


def _two_to(log: int) -> int:
    return 1 << int(log)
