"""Times of kernels that draw random numbers: each thread starts a generator (Philox) first.

Constants were measured on an H100 SXM 80 GB, torch 2.11.
"""

from __future__ import annotations

from costmodels.formulas.machine import Machine
from irgraph.ir.points.point_values import maximum, minimum

BLOCK, BLOCKS, GENERATOR_CYCLES = 256, 8, 670.0
"""Threads of a block, blocks on a multiprocessor, and cycles in which a block starts its generators
(1.5 us for a thousand numbers, 4.2 for 280,000)."""

DRAW_RATE = 2.5
"""Numbers per cycle and multiprocessor (153 M f32 in 236 us)."""

DROPOUT_RATES = {(2, 4): 1.65, (2, 2): 1.09, (2, 1): 1.28, (4, 4): 1.07, (4, 2): 0.89, (4, 1): 0.9}
"""Elements per cycle and multiprocessor of dropout, by element size in bytes and by the number of
elements of one load (f16: 62 M in 145 us, 54 M in 191 if their number is no multiple of four; f32:
70 M in 244, 185 M in 793)."""

DROPOUT_GENERATOR_CYCLES = 330.0
"""Cycles in which a block starts its generators in dropout (0.8 M f16 in 4.5 to 5.5 us)."""

DRAW_FORMULA = (
    "generators started by each block, then bytes or what the units draw (measured: H100)"
)


def draw_time(
    count: int,
    nbytes: float,
    rate: float,
    machine: Machine,
    *,
    per_thread: int = 1,
    generator_cycles: float = GENERATOR_CYCLES,
) -> float:
    """Return microseconds to draw numbers, ``per_thread`` in one thread, without the launch."""
    blocks = minimum(count / (BLOCK * per_thread * machine.sheet.sms), BLOCKS)
    generation_time = machine.cycles(count / (rate * machine.sheet.sms))
    return maximum(machine.stream(nbytes), generation_time) + machine.cycles(
        blocks * generator_cycles
    )


def dropout_time(count: int, itemsize: int, nbytes: float, machine: Machine) -> float:
    """Return microseconds of dropout that reads and writes elements, without the launch."""
    per_thread = 4 if count % 4 == 0 else 2 if count % 2 == 0 else 1
    rate = DROPOUT_RATES[2 if itemsize == 2 else 4, per_thread]
    return draw_time(
        count,
        nbytes,
        rate,
        machine,
        per_thread=per_thread,
        generator_cycles=DROPOUT_GENERATOR_CYCLES,
    )
