"""Times of torch's softmax over rows, and of its gradient (PersistentSoftmax.cuh, SoftMax.cu).

A warp processes a row of up to 1,024 or 2,048 columns, each lane every 32nd of them: the time of a
row is that of a lane. A block of 1,024 threads processes longer rows in registers. Gradients of
long rows are stored in shared memory if rows are aligned, and are read twice otherwise.
All constants were measured on an H100 SXM 80 GB under torch 2.11.
"""

from __future__ import annotations

from costmodels.formulas.machine import Machine
from costmodels.formulas.serial import step_time
from irgraph.ir.points.point_values import map_points, maximum, to_float

WARP = 32

MAX_WARP_COLUMNS, MAX_WARP_COLUMNS_BACK = 2048, 1024
"""Maximum number of columns of a warp."""

LANE, LANE_LOG, LANE_BACK = (178.0, 120.0), (115.0, 65.0), (100.0, 40.0)
"""Cycles of a lane for each value of a row, of two bytes and of four, in softmax, its logarithm,
and gradients (few rows of 980 columns f16: 4.4, 2.8 and 3.5 us; of 1,700 f16 7.3 and 4.4, f32
6.1)."""

HALVES, HALVES_BACK = 1.8, 1.45
"""Values of two bytes per cycle and multiprocessor, which lanes read individually: 61 M in 155 us,
gradients of 25 M in 64; values of four bytes move at memory bandwidth."""

BLOCK = 1024
"""Threads of a block with a row in registers."""

WAIT = 700.0
"""Cycles of a block's thread for each of its values if no other block runs."""

ROW, ROW_ALONE, MAX_SHARED_VALUES = 870.0, 1190.0, 6
"""Cycles of a multiprocessor for each of a thread's values of a row with two resident blocks and
with one, and the maximum number of values for two (4,920 rows of 3,337 columns 62 us, 10,190 of
7,308 344)."""

ROW_LOG = (680.0, 840.0)
"""Cycles of a multiprocessor in log-softmax, for values of two bytes and of four, in rows of any
length that fits into registers (16,693 rows of 5,559 columns f16 256 us, 7,360 of 3,648 f32 96)."""

MAX_REGISTER_VALUES = 9
"""Maximum number of values of a thread in registers."""

VECTOR, SWEEPS, SWEEPS_BACK = 16, 3, 2
"""Bytes that a thread reads in one load of longer rows, and number of sweeps of a block over such a
row, step by step; single rows of this length were not measured."""

REREAD_FACTOR = 1.4
"""Factor on the streaming time of gradients whose rows are not aligned to 16 bytes: their second
read hits the cache in part (179 M f16 in 515 us, streamed in 356). The same factor is assumed for
rows too long for registers."""

BLOCK_START = 1.5
"""Microseconds in which a block of gradients waits for its first values and sums up."""


def forward_time(rows: int, columns: int, itemsize: int, log: bool, machine: Machine) -> float:
    """Return microseconds of a softmax, or its logarithm, without the launch."""
    memory_time = machine.stream(2.0 * rows * columns * itemsize)
    if columns <= MAX_WARP_COLUMNS:
        if itemsize < 4:
            memory_time = maximum(memory_time, _unit_time(rows * columns, HALVES, machine))
        return memory_time + machine.cycles(
            (LANE_LOG if log else LANE)[itemsize >= 4] * _lane_values(columns)
        )
    values_per_thread = -(-columns // BLOCK)
    if values_per_thread > MAX_REGISTER_VALUES:
        return maximum(
            memory_time * _reread_factor(columns, itemsize),
            _walk_time(columns, itemsize, SWEEPS, machine),
        )
    row_cycles = ROW if values_per_thread <= MAX_SHARED_VALUES else ROW_ALONE
    row_cycles = ROW_LOG[itemsize >= 4] if log else row_cycles
    compute_time = machine.cycles(rows / machine.sheet.sms * values_per_thread * row_cycles)
    return maximum(memory_time, compute_time, machine.cycles(values_per_thread * WAIT))


def backward_time(rows: int, columns: int, itemsize: int, machine: Machine) -> float:
    """Return microseconds of the gradient's second kernel, without the launch."""
    memory_time = machine.stream(3.0 * rows * columns * itemsize)
    if columns <= MAX_WARP_COLUMNS_BACK:
        if itemsize < 4:
            memory_time = maximum(memory_time, _unit_time(rows * columns, HALVES_BACK, machine))
        return memory_time + machine.cycles(LANE_BACK[itemsize >= 4] * _lane_values(columns))
    walk_time = _walk_time(columns, itemsize, SWEEPS_BACK, machine)
    return maximum(memory_time * _reread_factor(columns, itemsize), walk_time) + BLOCK_START


def _walk_time(columns: int, itemsize: int, sweeps: int, machine: Machine) -> float:
    """Return microseconds of a block's sweeps over its row, which remains in the cache."""
    nbytes = columns * itemsize
    return sweeps * -(-nbytes // (BLOCK * VECTOR)) * step_time(machine, nbytes)


def _reread_factor(columns: int, itemsize: int) -> float:
    """Return the streaming factor of long rows: 1 if shared memory can store them."""
    return 1.0 if columns * itemsize % 16 == 0 else REREAD_FACTOR


def _unit_time(values: float, rate: float, machine: Machine) -> float:
    return machine.cycles(values / (rate * machine.sheet.sms))


def _lane_values(columns: int) -> float:
    """Return the number of values of a lane: rows are padded to a power of two."""
    return to_float(map_points(_next_power_of_two, columns)) / WARP


def _next_power_of_two(columns: int) -> int:
    return 1 << (max(int(columns), 1) - 1).bit_length()
