"""Norms of rows: a block of threads for each row, regardless of its width.

The time of narrow rows depends on their number, not on their bytes: on a multiprocessor with as
many rows as fit, a row takes a constant time plus a time for each column. Measured: H100 SXM 80
GB, torch 2.11, 32 to 32,000 rows of 16 to 4,000 columns; scaled to other cards by clock and number
of multiprocessors.
"""

from __future__ import annotations

from msgspec import Struct

from costmodels.formulas.machine import Machine
from costmodels.formulas.serial import stream_time
from irgraph.ir.points.point_values import if_else, maximum

VECTOR = 4
"""Elements of a load; rows of other lengths use kernels without vectors (torch,
layer_norm_kernel.cu)."""

BLOCK = 128
"""Threads of a block that share a row."""


class RowLaw(Struct, frozen=True):
    """Constants of a kernel over rows.

    Attributes:
        start: microseconds of the kernels on an empty card.
        row: cycles of a row on its multiprocessor, in 32 bits and in 16.
        column: additional cycles of each column, likewise.
        depth: cycles of the 128 columns that a block reads at a time, of the last row.
        passes: number of times that the data is moved.
        rate: bytes per cycle and multiprocessor of wide rows, unless memory is slower.
    """

    start: float
    row: tuple[float, float]
    column: tuple[float, float]
    depth: float
    passes: int
    rate: float


FORWARD = RowLaw(2.3, (343, 248), (0.60, 0.35), 120, 2, 8.65)
PLAIN = RowLaw(3.8, (1297, 1289), (1.08, 0.89), 190, 3, 8.8)
"""Law of two kernels: moments by blocks of 512 threads, then the result."""

GRADIENT = RowLaw(1.8, (182, 170), (0.26, 0.355), 140, 3, 10.4)
PLAIN_GRADIENT = RowLaw(1.9, (186, 186), (0.79, 0.465), 215, 3, 9.1)

LAW = (
    "a block a row, by cycles of a row and its columns, or bytes a cycle, or bytes / bandwidth "
    "(measured: H100 SXM 80 GB, torch 2.11)"
)


def rows_time(law: RowLaw, rows: int, columns: int, size: int, machine: Machine) -> float:
    """Return microseconds of rows with elements of ``size`` bytes."""
    narrow = 0 if size >= 4 else 1
    cycles = (law.row[narrow] + law.column[narrow] * columns) * rows / machine.sheet.sms
    memory_time = stream_time(machine, law.passes * size * rows * columns, law.rate)
    last_row_time = machine.cycles(law.depth * columns / BLOCK)
    return law.start + maximum(machine.cycles(cycles), memory_time) + last_row_time


def norm_time(rows: int, columns: int, size: int, machine: Machine, *, gradient: bool) -> float:
    """Return microseconds of layer norm, or of its data's gradient."""
    fast, slow = (GRADIENT, PLAIN_GRADIENT) if gradient else (FORWARD, PLAIN)
    vectors = size < 8 and columns % VECTOR == 0  # f64 has none
    return if_else(
        vectors,
        rows_time(fast, rows, columns, size, machine),
        rows_time(slow, rows, columns, size, machine),
    )


COLUMN_BLOCK, COLUMN_RATE = 32, 3.2
"""Columns of a block that sums layer norm's gradients over all rows, and the elements that it adds
in a cycle: 3.7 and 2.7 (256 and 512 columns, 6,000 rows, f32, on an A100 at 1,410 MHz; after
pytorch/pytorch#87814, in releases from 2.0, 5.0 and 2.4)."""

MANY_ROWS, FEW_BLOCKS = 2**16, 2
"""Number of rows beyond which releases from 2.8 also split rows among blocks, if the columns'
blocks would occupy less than half of the multiprocessors (pytorch/pytorch#150773)."""

PART_ROWS = 32
"""Rows of a part; two sums then combine all parts."""

JOIN = 7.0
"""Microseconds of a sum over thousands of rows of some hundred columns (measured: H100 SXM 80 GB,
torch 2.11: 6.6 to 11)."""


def is_summed_in_parts(rows: int, columns: int, machine: Machine) -> object:
    """Return whether the gradients of weight and bias are summed in parts of the rows."""
    if machine.software.norm_by_columns:
        return False
    blocks = maximum(columns // COLUMN_BLOCK, 1)
    return (rows > MANY_ROWS) and (blocks * FEW_BLOCKS < machine.sheet.sms)


def columns_time(rows: int, columns: int, machine: Machine) -> float:
    """Return microseconds of the blocks that sum 32 columns each over all rows."""
    blocks = -(-columns // COLUMN_BLOCK)
    turns = -(-blocks // machine.sheet.sms)
    return machine.cycles(turns * rows * COLUMN_BLOCK / COLUMN_RATE)
