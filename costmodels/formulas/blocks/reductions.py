"""How long torch's reductions take: what each thread adds up, how many blocks share a result.

The shape of the launch is torch's (Reduce.cuh, ``setReduceConfig``): threads go along the axis that
is contiguous; warps of a block share a result where each thread has many values left; blocks do
where that is still so and the grid would not fill the device. Each thread then reads four values at
a time one after the other, and the last block to finish adds up what the others left.
"""

from __future__ import annotations

from msgspec import Struct

from costmodels.formulas.machine import Machine
from costmodels.formulas.serial import slots
from irgraph.ir.points.point_values import doublings, maximum, minimum, power_of_two

START, STARTS = 3.0, {"hopper": 0.6, "blackwell": 0.6}
"""Microseconds that a reduction takes beside its blocks' lives (traced on V100: 5 to 6.7 us for
2,048 values, 10 to 13 for the columns of 2,048 rows), and where it was measured otherwise (H100 SXM
80 GB, torch 2.11: 1.9 to 2.4 us for a handful; Blackwell is taken as Hopper)."""

LIFE = 2600.0
"""Cycles of a block beside its reads: lanes and warps meet (measured: H100 SXM 80 GB, torch 2.11,
sums of 35 to 50 columns over 14,000 to 50,000 rows, 2.0 us a wave of blocks)."""

STEP = 690.0
"""Cycles of four reads of a thread, and of adding up one block's part (same source: 0.2 us where
the cache holds what is read, 0.5 where it holds what others wrote; half-way between)."""

MEET = 2200.0
"""Cycles of blocks that share results: parts written, counted and fetched (same source)."""

INDEXED_LIFE, INDEXED_STEP = 400.0, 950.0
"""The same of maxima whose places are kept: cycles on top for every halving of a row's lanes, and
of four reads (same source: maxima of 4 to 600 columns 2.2 to 3.6 us, of 5,000 17 to 25). Their
registers let in half as many blocks."""

ADDED, INDEXED = 5.0, 4.2
"""Values a cycle and multiprocessor that are converted and added up, or compared with their
indices (same source: sums of f16 over 50 M and more, maxima over 30 M)."""

THREADS, WARP = 512, 32
LEAST_VALUES, MOST_VALUES = 16, 256
"""Values a thread from which warps, or blocks, share a result (Reduce.cuh)."""

READ_AT_ONCE, HALVES_AT_ONCE = 4, 8
"""Values of a thread that are on their way together; of two bytes, where they lie side by side."""


class Launch(Struct, frozen=True):
    """A reduction's launch.

    Attributes:
        threads: of a block.
        width: of them that lie along the contiguous axis.
        values: that each thread adds up.
        blocks: of the grid.
        sharing: blocks that share a result.
        tail: steps in which the last of them adds up the parts.
    """

    threads: int
    width: int
    values: int
    blocks: int
    sharing: int
    tail: int


def launch_of(outputs: int, inputs: int, along: bool, machine: Machine) -> Launch:
    """Return the launch that reduces ``inputs`` values to each of ``outputs`` results.

    ``along``: whether what is reduced lies next to each other.
    """
    wide = 1 if along else _vector(outputs)
    across, down = (inputs, outputs) if along else (outputs // wide, inputs)
    if along and outputs == 1 and inputs > 128:
        across = inputs // READ_AT_ONCE
    width, height = _block(across, down, THREADS // wide)
    values = -(-inputs // width) if along else inputs
    split = values >= minimum(height * LEAST_VALUES, MOST_VALUES)
    lanes = 1 if along else width
    if split:
        values, grid = -(-values // height), -(-outputs // (lanes * wide))
    else:
        grid = -(-outputs // (lanes * wide * height))
    target = machine.sheet.sms * (slots(machine) // (width * height))
    sharing = 1
    if split and values >= MOST_VALUES and grid <= target:
        filling = minimum(-(-target // grid), -(-values // LEAST_VALUES))
        sharing = maximum(filling, -(-values // MOST_VALUES))
        values = -(-values // sharing)
    tail = -(-sharing // (width * height if along else height))
    return Launch(width * height, width, values, grid * sharing, sharing, tail)


def reducing_time(
    launch: Launch, nbytes: float, values: float, machine: Machine, *, together: int, indexed: bool
) -> float:
    """Return microseconds of a launch that reads so many bytes and values.

    ``together``: values of a thread that are on their way at once; ``indexed``: whether the places
    of values are kept.
    """
    held = machine.sheet.sms * (slots(machine) // launch.threads // (2 if indexed else 1))
    waves = -(-launch.blocks // held)
    steps, step, life = -(-launch.values // together), STEP, LIFE
    if indexed:
        step, life = INDEXED_STEP, LIFE + INDEXED_LIFE * doublings(launch.width)
    reads = maximum(machine.stream(nbytes), machine.cycles(waves * steps * step))
    rate = (INDEXED if indexed else ADDED) * machine.sheet.sms
    reads = maximum(reads, machine.cycles(values / rate))
    if launch.blocks > held and not indexed:  # the last wave's blocks wait with few beside them
        reads += machine.cycles(minimum(launch.blocks % held, 1) * steps * step)
    shared = launch.tail * STEP + MEET if launch.sharing > 1 else 0.0
    return (
        reads
        + machine.cycles(waves * life + shared)
        + STARTS.get(machine.sheet.architecture, START)
    )


def _vector(outputs: int) -> int:
    """Return the neighbouring results that one thread works out."""
    return 4 if outputs % 4 == 0 else 2 if outputs % 2 == 0 else 1


def _block(across: int, down: int, threads: int) -> tuple[int, int]:
    """Return a block's width and height: powers of two, warps along the contiguous axis."""
    wide, high = (minimum(power_of_two(n), threads) for n in (across, down))
    width = minimum(wide, WARP)
    height = minimum(high, threads // width)
    return minimum(wide, threads // height), height
