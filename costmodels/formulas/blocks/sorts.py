"""How long torch takes to sort rows and to find their greatest values (Sort.cu, TensorTopK.cu).

All constants were measured on an H100 SXM 80 GB under torch 2.11, for f32 and the eight greatest.
"""

from __future__ import annotations

from costmodels.formulas.machine import Machine
from irgraph.ir.points.point_values import maximum

BESIDE = 3
"""Kernels beside the sort itself: rows are copied, and their places numbered."""

BITONIC, BITONIC_START, BITONIC_ROW, BITONIC_VALUE = 32, 7000.0, 130.0, 6.3
"""Columns that a warp sorts by exchanges; cycles that it waits; cycles of a multiprocessor for each
row and value (22,000 rows of 32 in 36 us)."""

RADIX = (
    (128, 9000.0, 7500.0, 1500.0, 0.0), (1024, 30000.0, 17400.0, 5400.0, 3.3),
    (2048, 32500.0, 17400.0, 11900.0, 3.3), (4096, 36000.0, 17400.0, 20900.0, 3.4),
)  # fmt: skip
"""Of blocks that sort rows by digits: most columns; cycles that they wait at least; cycles that
come before those of a multiprocessor for each row and for each of its values (35,000 rows of 117 in
228 us, 50,000 of 383 in 1,263, 480 of 1,276 in 43, 650 of 2,433 in 83)."""

FEW_ROWS, FEW_START, FEW_VALUE = 128, 119000.0, 19.0
"""Longer rows, up to so many, are sorted together: cycles of all passes, and of a multiprocessor
for each value (21 rows of 6,800 in 71 us)."""

SEGMENT_START, SEGMENT_VALUE = 15000.0, 22.0
"""Cycles where more rows are sorted each by itself (7,400 rows of 5,600 in 3,296 us)."""

SELECT_START, SELECT_WALK, SELECT_ROW, SELECT_VALUE = 13500.0, 11.5, 380.0, 13.6
"""Of one block for each row that selects: cycles that all take, for each value of a row one after
the other, and those of a multiprocessor for each row and value (51,700 rows of 38 in 192 us)."""

BLOCKS_LEAST, BLOCKS_START, BLOCKS_ROW, BLOCKS_VALUE = 122000.0, 49500.0, 5500.0, 2.9
"""Cycles of several blocks for each row: at least, to begin, and as above (936 rows of 1,472 in 65
us, 15,000 of 6,000 in 1,350)."""

BLOCKS_FROM = (
    (20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800), (None, 400),
)  # fmt: skip
"""Columns from which several blocks select, by the most rows (TensorTopK.cu)."""


def sorting_time(rows: int, columns: int, machine: Machine) -> float:
    """Return microseconds to sort rows with the places of their values."""
    beside = BESIDE * machine.start
    share = rows / machine.sheet.sms
    if columns <= BITONIC:
        work = BITONIC_START + share * (BITONIC_ROW + BITONIC_VALUE * columns)
        return beside + machine.cycles(work)
    for widest, least_wait, before, row, value in RADIX:
        if columns <= widest:
            work = before + share * (row + value * columns)
            return beside + machine.cycles(maximum(least_wait, work))
    start, value = (FEW_START, FEW_VALUE) if rows < FEW_ROWS else (SEGMENT_START, SEGMENT_VALUE)
    return beside + machine.cycles(start + share * columns * value)


def selecting_time(rows: int, columns: int, machine: Machine) -> float:
    """Return microseconds to find some greatest values of rows, and to sort those."""
    several = next(
        least for most_rows, least in BLOCKS_FROM if most_rows is None or rows <= most_rows
    )
    if columns >= several:
        share = rows / machine.sheet.sms
        work = BLOCKS_START + share * (BLOCKS_ROW + BLOCKS_VALUE * columns)
        return machine.cycles(maximum(work, BLOCKS_LEAST)) + 2 * machine.start
    share = maximum(rows / machine.sheet.sms - 0.5, 0.0)
    work = SELECT_START + SELECT_WALK * columns + share * (SELECT_ROW + SELECT_VALUE * columns)
    return machine.cycles(work) + 2 * machine.start
