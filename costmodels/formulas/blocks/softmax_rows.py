"""How long torch's softmax over rows takes, and its gradient (PersistentSoftmax.cuh, SoftMax.cu).

A warp holds a row of up to 1,024 or 2,048 columns, each lane every 32nd of them, so that a row
takes as long as its lane; longer ones are held by a block of 1,024 threads in registers. Gradients
of long rows are kept in shared memory where rows are aligned, and are read twice where not.
All constants were measured on an H100 SXM 80 GB under torch 2.11.
"""

from __future__ import annotations

from costmodels.formulas.machine import Machine
from costmodels.formulas.serial import step
from irgraph.ir.points.point_values import map_points, maximum, to_float

WARP = 32

WARP_COLUMNS, WARP_COLUMNS_BACK = 2048, 1024
"""Most columns that a warp holds."""

LANE, LANE_LOG, LANE_BACK = (178.0, 120.0), (115.0, 65.0), (100.0, 40.0)
"""Cycles of a lane for each value of a row, of two bytes and of four: softmax, its logarithm, and
gradients (few rows of 980 columns f16: 4.4, 2.8 and 3.5 us; of 1,700 f16 7.3 and 4.4, f32 6.1)."""

HALVES, HALVES_BACK = 1.8, 1.45
"""Values of two bytes a cycle and multiprocessor, which lanes read one by one: 61 M in 155 us,
gradients of 25 M in 64; those of four bytes move at the memory's bandwidth."""

BLOCK = 1024
"""Threads of a block that holds a row in registers."""

WAIT = 700.0
"""Cycles of a block's thread for each of its values where nothing else is under way."""

ROW, ROW_ALONE, MOST_SHARED = 870.0, 1190.0, 6
"""Cycles of a multiprocessor for each of a thread's values of a row, where registers let in two
blocks (up to six values) and where one (4,920 rows of 3,337 columns 62 us, 10,190 of 7,308 344)."""

ROW_LOG = (680.0, 840.0)
"""The same of log-softmax, of values of two bytes and of four, in rows of any length that registers
hold (16,693 rows of 5,559 columns f16 256 us, 7,360 of 3,648 f32 96)."""

MOST_HELD = 9
"""Values of a thread that registers hold."""

VECTOR, SWEEPS, SWEEPS_BACK = 16, 3, 2
"""Bytes that a thread reads at once of longer rows, and how often a block walks through one, step
by step; rows so long were not measured alone."""

TWICE = 1.4
"""Times the bytes that gradients of rows off 16 bytes take to move: their second reading is found
in the cache in part (179 M f16 in 515 us where they would stream in 356). Rows too long for
registers are taken to be read again alike."""

BLOCK_START = 1.5
"""Microseconds in which a block of gradients waits for its first values, and sums up."""


def forward_time(rows: int, columns: int, itemsize: int, log: bool, machine: Machine) -> float:
    """Return microseconds of a softmax, or its logarithm, beside the launch."""
    moved = machine.stream(2.0 * rows * columns * itemsize)
    if columns <= WARP_COLUMNS:
        if itemsize < 4:
            moved = maximum(moved, _units(rows * columns, HALVES, machine))
        return moved + machine.cycles((LANE_LOG if log else LANE)[itemsize >= 4] * _lane(columns))
    held = -(-columns // BLOCK)
    if held > MOST_HELD:
        return maximum(moved * _again(columns, itemsize), _walk(columns, itemsize, SWEEPS, machine))
    row = ROW if held <= MOST_SHARED else ROW_ALONE
    row = ROW_LOG[itemsize >= 4] if log else row
    worked = machine.cycles(rows / machine.sheet.sms * held * row)
    return maximum(moved, worked, machine.cycles(held * WAIT))


def backward_time(rows: int, columns: int, itemsize: int, machine: Machine) -> float:
    """Return microseconds of the gradient's second kernel beside the launch."""
    moved = machine.stream(3.0 * rows * columns * itemsize)
    if columns <= WARP_COLUMNS_BACK:
        if itemsize < 4:
            moved = maximum(moved, _units(rows * columns, HALVES_BACK, machine))
        return moved + machine.cycles(LANE_BACK[itemsize >= 4] * _lane(columns))
    walked = _walk(columns, itemsize, SWEEPS_BACK, machine)
    return maximum(moved * _again(columns, itemsize), walked) + BLOCK_START


def _walk(columns: int, itemsize: int, sweeps: int, machine: Machine) -> float:
    """Return microseconds in which a block walks through its row, which stays in the cache."""
    nbytes = columns * itemsize
    return sweeps * -(-nbytes // (BLOCK * VECTOR)) * step(machine, nbytes)


def _again(columns: int, itemsize: int) -> float:
    """Return how many times their bytes long rows take: once where shared memory can hold them."""
    return 1.0 if columns * itemsize % 16 == 0 else TWICE


def _units(values: float, rate: float, machine: Machine) -> float:
    return machine.cycles(values / (rate * machine.sheet.sms))


def _lane(columns: int) -> float:
    """Return the values that a lane holds of a row: rows are filled up to a power of two."""
    return to_float(map_points(_filled, columns)) / WARP


def _filled(columns: int) -> int:
    return 1 << (max(int(columns), 1) - 1).bit_length()
