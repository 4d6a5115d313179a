"""Times of torch's sorts of rows and selections of maximum values (Sort.cu, TensorTopK.cu).

All constants were measured on an H100 SXM 80 GB under torch 2.11, for f32 and the top eight values.
"""

from __future__ import annotations

from costmodels.formulas.machine import Machine
from irgraph.ir.points.point_values import maximum

EXTRA_KERNELS = 3
"""Number of kernels besides the sort itself: rows are copied, and their positions numbered."""

BITONIC, BITONIC_START, BITONIC_ROW, BITONIC_VALUE = 32, 7000.0, 130.0, 6.3
"""Maximum number of columns that a warp sorts by exchanges; cycles of latency; cycles of a
multiprocessor for each row and for each value (22,000 rows of 32 in 36 us)."""

RADIX = (
    (128, 9000.0, 7500.0, 1500.0, 0.0), (1024, 30000.0, 17400.0, 5400.0, 3.3),
    (2048, 32500.0, 17400.0, 11900.0, 3.3), (4096, 36000.0, 17400.0, 20900.0, 3.4),
)  # fmt: skip
"""Constants of blocks that sort rows by digits: maximum number of columns; minimum number of
cycles; cycles of the start, and of a multiprocessor for each row and for each of its values (35,000
rows of 117 in 228 us, 50,000 of 383 in 1,263, 480 of 1,276 in 43, 650 of 2,433 in 83)."""

FEW_ROWS, FEW_START, FEW_VALUE = 128, 119000.0, 19.0
"""Number of longer rows below which they are sorted together; cycles of all passes, and of a
multiprocessor for each value (21 rows of 6,800 in 71 us)."""

SEGMENT_START, SEGMENT_VALUE = 15000.0, 22.0
"""The same cycles if more rows are sorted individually (7,400 rows of 5,600 in 3,296 us)."""

SELECT_START, SELECT_WALK, SELECT_ROW, SELECT_VALUE = 13500.0, 11.5, 380.0, 13.6
"""Cycles of a selection with one block for each row: of the start, of each value of a row in
sequence, and of a multiprocessor for each row and each value (51,700 rows of 38 in 192 us)."""

MIN_BLOCKS_CYCLES, BLOCKS_START, BLOCKS_ROW, BLOCKS_VALUE = 122000.0, 49500.0, 5500.0, 2.9
"""Cycles of a selection with several blocks for each row: their minimum, of the start, and of a
multiprocessor for each row and each value (936 rows of 1,472 in 65 us, 15,000 of 6,000 in
1,350)."""

BLOCKS_FROM = (
    (20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800), (None, 400),
)  # fmt: skip
"""Number of columns from which several blocks select, by maximum number of rows
(TensorTopK.cu)."""


def sort_time(rows: int, columns: int, machine: Machine) -> float:
    """Return microseconds to sort rows with the indices of their values."""
    extra_time = EXTRA_KERNELS * machine.start
    share = rows / machine.sheet.sms
    if columns <= BITONIC:
        work = BITONIC_START + share * (BITONIC_ROW + BITONIC_VALUE * columns)
        return extra_time + machine.cycles(work)
    for max_columns, min_cycles, start_cycles, row, value in RADIX:
        if columns <= max_columns:
            work = start_cycles + share * (row + value * columns)
            return extra_time + machine.cycles(maximum(min_cycles, work))
    start, value = (FEW_START, FEW_VALUE) if rows < FEW_ROWS else (SEGMENT_START, SEGMENT_VALUE)
    return extra_time + machine.cycles(start + share * columns * value)


def selection_time(rows: int, columns: int, machine: Machine) -> float:
    """Return microseconds to select the maximum values of rows, and to sort them."""
    multi_block_columns = next(
        min_columns for max_rows, min_columns in BLOCKS_FROM if max_rows is None or rows <= max_rows
    )
    if columns >= multi_block_columns:
        share = rows / machine.sheet.sms
        work = BLOCKS_START + share * (BLOCKS_ROW + BLOCKS_VALUE * columns)
        return machine.cycles(maximum(work, MIN_BLOCKS_CYCLES)) + 2 * machine.start
    share = maximum(rows / machine.sheet.sms - 0.5, 0.0)
    work = SELECT_START + SELECT_WALK * columns + share * (SELECT_ROW + SELECT_VALUE * columns)
    return machine.cycles(work) + 2 * machine.start
