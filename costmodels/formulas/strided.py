"""How long a copy takes that reads in another order than it writes.

torch's kernel goes over the result in order: each thread works out where its elements lie in the
source. Where the contiguous axis of the source is not the result's, every element of a warp lies in
a sector of its own; how often a sector serves again before it is dropped depends on how soon the
result's order comes to its neighbours. Constants were measured on an H100 SXM 80 GB, torch 2.11.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from costmodels.formulas.machine import Machine, traffic
from irgraph.ir.points.point_values import maximum, minimum
from irgraph.ir.tensor import Tensor, row_major

OFFSETS = 1.45
"""Elements a cycle and multiprocessor whose offsets are worked out (764 M f16 in 2,014 us)."""

WHOLE_SHARES = {"hopper": 0.73, "blackwell": 0.73}
"""Share of the reachable bandwidth of such copies of whole rows (745 M f32 in 2,699 us). The law
holds for these architectures; Blackwell is taken as Hopper."""

SECTOR = 32
"""Bytes that a read fetches at least."""

SECTOR_CYCLES = 1.25
"""Cycles of a multiprocessor for a sector that serves one element (621 M f32 with their last two of
three axes exchanged in 5,165 us, 609 M f16 in 4,699)."""

NEAR_BY = 256
"""Elements of the result that follow one another within a block: what they share of a sector is
read once (67 M f32 with rows of 109 in 416 us)."""

NARROW = 160
"""Bytes of the source's contiguous axis up to which sectors serve more than one of its rows (11 M
f32 with 7 to 28 of them at 256 to 138 G a second)."""


HALVES_START = 0.4
"""Microseconds that elements of two bytes take longer however few: four to a thread and not two."""


def strided_time(source: Tensor, result: Tensor, machine: Machine) -> float:
    """Return microseconds of a copy, beside the launch."""
    moved = machine.stream(traffic(source, result), WHOLE_SHARES[machine.sheet.architecture])
    offsets = result.numel / (OFFSETS * machine.sheet.sms)
    time = maximum(moved, machine.cycles(offsets)) + (HALVES_START if source.itemsize < 4 else 0.0)
    return time + sectors_time(source, result, machine)


def sectors_time(source: Tensor, result: Tensor, machine: Machine) -> float:
    """Return microseconds of the sectors that are fetched more than once; 0 where none is."""
    crossing = _crossed(source, result)
    if crossing is None:
        return 0.0
    inside, across = crossing
    again = maximum(NEAR_BY / maximum(inside, 1), 1.0) * maximum(
        NARROW / (across * source.itemsize), 1.0
    )
    again = minimum(again, SECTOR / source.itemsize)
    sectors = result.numel / (again * machine.sheet.sms)
    return machine.cycles(sectors * SECTOR_CYCLES)


def _crossed(source: Tensor, result: Tensor) -> tuple[int, int] | None:
    """Return how many elements of the result come before the source's next neighbour, and of these.

    ``None`` where the same axis is contiguous in both.
    """
    steps, written = (t.strides or row_major(t.shape) for t in (source, result))
    axes = [axis for axis, size in enumerate(source.shape) if size != 1]
    near = [axis for axis in axes if steps[axis] == 1]
    if not near or len(written) != len(steps):
        return None
    inside = [a for a in axes if written[a] < written[near[-1]]]
    if not inside:
        return None
    return math.prod(source.shape[a] for a in inside), _joined(
        source.shape, steps, written, near[-1]
    )


def _joined(shape: Sequence[int], steps: Sequence[int], written: Sequence[int], axis: int) -> int:
    """Return the elements of an axis and of those that go on where it ends, in both orders.

    torch joins such axes to one, as the height and width of an image.
    """
    size, more = shape[axis], [axis]
    while more:
        ends = (steps[axis] * size, written[axis] * size)
        more = [a for a, n in enumerate(shape) if n > 1 and (steps[a], written[a]) == ends]
        size *= math.prod(shape[a] for a in more)
    return size
