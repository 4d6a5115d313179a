"""Norms of rows: a block of threads for each row, however narrow the row is.

Narrow rows cost by their number and not by their bytes: what a row takes on its multiprocessor,
with as many others as fit, is a start and something for each column. Measured: H100 SXM 80 GB,
torch 2.11, 32 to 32,000 rows of 16 to 4,000 columns; carried to other cards by clock and
multiprocessors.
"""

from __future__ import annotations

from msgspec import Struct

from costmodels.formulas.machine import Machine
from costmodels.formulas.serial import streamed
from irgraph.ir.points.point_values import if_else, maximum

VECTOR = 4
"""Elements of a load; rows that are no multiple take kernels without vectors (torch,
layer_norm_kernel.cu)."""

BLOCK = 128
"""Threads of a block that share a row."""


class Rows(Struct, frozen=True):
    """What rows take.

    Attributes:
        start: microseconds of the kernels on an empty card.
        row: cycles of a row on its multiprocessor, in 32 bits and in 16.
        column: cycles that each column adds, likewise.
        depth: cycles of the 128 columns that a block reads at a time, of the last row.
        passes: times that the data is moved.
        rate: bytes a cycle and multiprocessor that wide rows reach, if the memory is as fast.
    """

    start: float
    row: tuple[float, float]
    column: tuple[float, float]
    depth: float
    passes: int
    rate: float


FORWARD = Rows(2.3, (343, 248), (0.60, 0.35), 120, 2, 8.65)
PLAIN = Rows(3.8, (1297, 1289), (1.08, 0.89), 190, 3, 8.8)
"""Two kernels: moments by blocks of 512 threads, then the result."""

GRADIENT = Rows(1.8, (182, 170), (0.26, 0.355), 140, 3, 10.4)
PLAIN_GRADIENT = Rows(1.9, (186, 186), (0.79, 0.465), 215, 3, 9.1)

LAW = (
    "a block a row, by cycles of a row and its columns, or bytes a cycle, or bytes / bandwidth "
    "(measured: H100 SXM 80 GB, torch 2.11)"
)


def rows_time(law: Rows, rows: int, columns: int, size: int, machine: Machine) -> float:
    """Return microseconds of rows whose elements have ``size`` bytes."""
    narrow = 0 if size >= 4 else 1
    cycles = (law.row[narrow] + law.column[narrow] * columns) * rows / machine.sheet.sms
    moved = streamed(machine, law.passes * size * rows * columns, law.rate)
    last = machine.cycles(law.depth * columns / BLOCK)
    return law.start + maximum(machine.cycles(cycles), moved) + last


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
"""Columns of a block that sums layer norm's gradients over all rows, and the elements that it sums
up in a cycle: 3.7 and 2.7 (256 and 512 columns, 6,000 rows, f32, on an A100 at 1,410 MHz; after
pytorch/pytorch#87814, in releases from 2.0, 5.0 and 2.4)."""

MANY_ROWS, FEW_BLOCKS = 2**16, 2
"""Rows beyond which releases from 2.8 part them among blocks too, where the columns' blocks would
keep less than half of the multiprocessors busy (pytorch/pytorch#150773)."""

PARTED = 32
"""Rows of a part; two sums then join all parts."""

JOIN = 7.0
"""Microseconds of a sum over thousands of rows of some hundred columns (measured: H100 SXM 80 GB,
torch 2.11: 6.6 to 11)."""


def parted(rows: int, columns: int, machine: Machine) -> object:
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
