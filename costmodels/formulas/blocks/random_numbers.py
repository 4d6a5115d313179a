"""How long kernels take that draw random numbers: each thread starts a generator (Philox) first.

Constants were measured on an H100 SXM 80 GB, torch 2.11.
"""

from __future__ import annotations

from costmodels.formulas.machine import Machine
from irgraph.ir.points.point_values import maximum, minimum

BLOCK, BLOCKS, STARTED = 256, 8, 670.0
"""Threads of a block, blocks to a multiprocessor, and cycles in which each starts its generators
(1.5 us for a thousand numbers, 4.2 for 280,000)."""

DRAWN = 2.5
"""Numbers a cycle and multiprocessor (153 M f32 in 236 us)."""

DROPPED = {(2, 4): 1.65, (2, 2): 1.09, (2, 1): 1.28, (4, 4): 1.07, (4, 2): 0.89, (4, 1): 0.9}
"""Elements a cycle and multiprocessor of dropout, by their bytes and how many a thread loads at
once (f16: 62 M in 145 us, 54 M in 191 where their number is no multiple of four; f32: 70 M in 244,
185 M in 793)."""

STARTED_DROPPING = 330.0
"""The cycles of a block's generators in dropout (0.8 M f16 in 4.5 to 5.5 us)."""

DRAWING = "generators started by each block, then bytes or what the units draw (measured: H100)"


def drawing_time(
    count: int,
    nbytes: float,
    rate: float,
    machine: Machine,
    *,
    together: int = 1,
    started: float = STARTED,
) -> float:
    """Return microseconds to draw numbers, ``together`` in one thread, beside the launch."""
    blocks = minimum(count / (BLOCK * together * machine.sheet.sms), BLOCKS)
    drawn = machine.cycles(count / (rate * machine.sheet.sms))
    return maximum(machine.stream(nbytes), drawn) + machine.cycles(blocks * started)


def dropping_time(count: int, itemsize: int, nbytes: float, machine: Machine) -> float:
    """Return microseconds of dropout that reads and writes elements, beside the launch."""
    together = 4 if count % 4 == 0 else 2 if count % 2 == 0 else 1
    rate = DROPPED[2 if itemsize == 2 else 4, together]
    return drawing_time(count, nbytes, rate, machine, together=together, started=STARTED_DROPPING)
