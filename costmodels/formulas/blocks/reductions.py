"""Times of torch's reductions, by the values of each thread and the blocks that share a result.

The shape of the launch is torch's (Reduce.cuh, ``setReduceConfig``): threads are assigned along the
contiguous axis. If each thread still has many values, warps of a block share a result. If that is
not enough and the grid would not fill the device, blocks do. Each thread then reads four values at
a time in sequence, and the last block to finish adds up the parts of the others.
"""

from __future__ import annotations

from msgspec import Struct

from costmodels.formulas.machine import Machine
from costmodels.formulas.serial import thread_slots
from irgraph.ir.points.point_values import doublings, maximum, minimum, power_of_two

START, STARTS = 3.0, {"hopper": 0.6, "blackwell": 0.6}
"""Microseconds of a reduction in addition to its blocks' lifetimes (traced on V100: 5 to 6.7 us
for 2,048 values, 10 to 13 for the columns of 2,048 rows), and of other architectures (H100 SXM 80
GB, torch 2.11: 1.9 to 2.4 us for a handful of values; Blackwell is assumed to equal Hopper)."""

LIFE = 2600.0
"""Cycles of a block in addition to its reads: lanes and warps synchronise (measured: H100 SXM 80
GB, torch 2.11, sums of 35 to 50 columns over 14,000 to 50,000 rows, 2.0 us a wave of blocks)."""

STEP = 690.0
"""Cycles of four reads of a thread, and of adding up one block's part (same source: 0.2 us if the
operands are cached, 0.5 if the cache contains other results; the mean of both)."""

MEETING_CYCLES = 2200.0
"""Cycles of blocks that share results, to write, count and fetch parts (same source)."""

INDEXED_LIFE, INDEXED_STEP = 400.0, 950.0
"""Constants of maxima with indices: additional cycles for every halving of a row's lanes, and
cycles of four reads (same source: maxima of 4 to 600 columns 2.2 to 3.6 us, of 5,000 17 to 25).
Because of their registers, half as many blocks are resident."""

ADD_RATE, INDEXED_RATE = 5.0, 4.2
"""Values per cycle and multiprocessor that are converted and added up, or compared with their
indices (same source: sums of f16 over 50 M and more, maxima over 30 M)."""

THREADS, WARP = 512, 32
MIN_VALUES, MAX_VALUES = 16, 256
"""Values of a thread from which warps, or blocks, share a result (Reduce.cuh)."""

VALUES_AT_ONCE, HALVES_AT_ONCE = 4, 8
"""Concurrent loads of a thread; the second number is for contiguous values of two bytes."""


class ReductionLaunch(Struct, frozen=True):
    """A reduction's launch.

    Attributes:
        threads: threads of a block.
        width: threads along the contiguous axis.
        values: values that each thread adds up.
        blocks: blocks of the grid.
        sharing: number of blocks that share a result.
        tail: number of steps in which the last of them adds up the parts.
    """

    threads: int
    width: int
    values: int
    blocks: int
    sharing: int
    tail: int


def launch_of(outputs: int, inputs: int, contiguous: bool, machine: Machine) -> ReductionLaunch:
    """Return the launch that reduces ``inputs`` values to each of ``outputs`` results.

    ``contiguous``: whether the values of a result are contiguous.
    """
    wide = 1 if contiguous else _vector(outputs)
    x_size, y_size = (inputs, outputs) if contiguous else (outputs // wide, inputs)
    if contiguous and outputs == 1 and inputs > 128:
        x_size = inputs // VALUES_AT_ONCE
    width, height = _block(x_size, y_size, THREADS // wide)
    values = -(-inputs // width) if contiguous else inputs
    is_split = values >= minimum(height * MIN_VALUES, MAX_VALUES)
    lanes = 1 if contiguous else width
    if is_split:
        values, grid = -(-values // height), -(-outputs // (lanes * wide))
    else:
        grid = -(-outputs // (lanes * wide * height))
    target = machine.sheet.sms * (thread_slots(machine) // (width * height))
    sharing = 1
    if is_split and values >= MAX_VALUES and grid <= target:
        filling = minimum(-(-target // grid), -(-values // MIN_VALUES))
        sharing = maximum(filling, -(-values // MAX_VALUES))
        values = -(-values // sharing)
    tail = -(-sharing // (width * height if contiguous else height))
    return ReductionLaunch(width * height, width, values, grid * sharing, sharing, tail)


def reduction_time(
    launch: ReductionLaunch,
    nbytes: float,
    values: float,
    machine: Machine,
    *,
    at_once: int,
    indexed: bool,
) -> float:
    """Return microseconds of a launch that reads ``nbytes`` bytes and ``values`` values.

    ``at_once``: number of concurrent loads of a thread; ``indexed``: whether it also returns
    indices.
    """
    resident_blocks = machine.sheet.sms * (
        thread_slots(machine) // launch.threads // (2 if indexed else 1)
    )
    waves = -(-launch.blocks // resident_blocks)
    steps, step, life = -(-launch.values // at_once), STEP, LIFE
    if indexed:
        step, life = INDEXED_STEP, LIFE + INDEXED_LIFE * doublings(launch.width)
    reads = maximum(machine.stream(nbytes), machine.cycles(waves * steps * step))
    rate = (INDEXED_RATE if indexed else ADD_RATE) * machine.sheet.sms
    reads = maximum(reads, machine.cycles(values / rate))
    if (
        launch.blocks > resident_blocks and not indexed
    ):  # the last wave's blocks wait with few beside them
        reads += machine.cycles(minimum(launch.blocks % resident_blocks, 1) * steps * step)
    sharing_cycles = launch.tail * STEP + MEETING_CYCLES if launch.sharing > 1 else 0.0
    return (
        reads
        + machine.cycles(waves * life + sharing_cycles)
        + STARTS.get(machine.sheet.architecture, START)
    )


def _vector(outputs: int) -> int:
    """Return the number of neighbouring results that one thread computes."""
    return 4 if outputs % 4 == 0 else 2 if outputs % 2 == 0 else 1


def _block(x_size: int, y_size: int, threads: int) -> tuple[int, int]:
    """Return a block's width and height: powers of two, warps along the contiguous axis."""
    max_width, max_height = (minimum(power_of_two(n), threads) for n in (x_size, y_size))
    width = minimum(max_width, WARP)
    height = minimum(max_height, threads // width)
    return minimum(max_width, threads // height), height
