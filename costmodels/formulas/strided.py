"""Times of copies that read in another order than they write.

torch's kernel iterates over the result in order: each thread computes the offsets of its elements
in the source. If the contiguous axis of the source is not the result's, every element of a warp is
in a different sector; the number of uses of a sector before its eviction depends on the distance of
its elements in the result's order. Constants were measured on an H100 SXM 80 GB, torch 2.11.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from costmodels.formulas.machine import Machine, traffic
from irgraph.ir.points.point_values import maximum, minimum
from irgraph.ir.tensor import Tensor, row_major

OFFSETS = 1.45
"""Elements with computed offsets per cycle and multiprocessor (764 M f16 in 2,014 us)."""

WHOLE_SHARES = {"hopper": 0.73, "blackwell": 0.73}
"""Share of the reachable bandwidth of such copies of whole rows (745 M f32 in 2,699 us). The law
applies to these architectures; Blackwell is assumed to equal Hopper."""

SECTOR = 32
"""Minimum number of bytes of a read."""

SECTOR_CYCLES = 1.25
"""Cycles of a multiprocessor for a sector with one used element (621 M f32 with their last two of
three axes exchanged in 5,165 us, 609 M f16 in 4,699)."""

NEAR_BY = 256
"""Number of consecutive elements of the result in a block, which read a shared sector once (67 M
f32 with rows of 109 in 416 us)."""

NARROW = 160
"""Bytes of the source's contiguous axis up to which sectors contain more than one of its rows (11 M
f32 with 7 to 28 of them at 256 to 138 G a second)."""


HALVES_START = 0.4
"""Additional microseconds of elements of two bytes, for any number: four to a thread, not two."""


def strided_time(source: Tensor, result: Tensor, machine: Machine) -> float:
    """Return microseconds of a copy, without the launch."""
    memory_time = machine.stream(traffic(source, result), WHOLE_SHARES[machine.sheet.architecture])
    offsets = result.numel / (OFFSETS * machine.sheet.sms)
    time = maximum(memory_time, machine.cycles(offsets)) + (
        HALVES_START if source.itemsize < 4 else 0.0
    )
    return time + sectors_time(source, result, machine)


def sectors_time(source: Tensor, result: Tensor, machine: Machine) -> float:
    """Return microseconds of the sectors that are fetched more than once; 0 if none is."""
    extents = _crossing_extents(source, result)
    if extents is None:
        return 0.0
    inside, across = extents
    uses = maximum(NEAR_BY / maximum(inside, 1), 1.0) * maximum(
        NARROW / (across * source.itemsize), 1.0
    )
    uses = minimum(uses, SECTOR / source.itemsize)
    sectors = result.numel / (uses * machine.sheet.sms)
    return machine.cycles(sectors * SECTOR_CYCLES)


def _crossing_extents(source: Tensor, result: Tensor) -> tuple[int, int] | None:
    """Return the distance of the source's neighbours in the result, and the size of their axis.

    The distance is a number of elements. Return ``None`` if the same axis is contiguous in both.
    """
    steps, result_steps = (t.strides or row_major(t.shape) for t in (source, result))
    axes = [axis for axis, size in enumerate(source.shape) if size != 1]
    contiguous_axes = [axis for axis in axes if steps[axis] == 1]
    if not contiguous_axes or len(result_steps) != len(steps):
        return None
    inside = [a for a in axes if result_steps[a] < result_steps[contiguous_axes[-1]]]
    if not inside:
        return None
    return math.prod(source.shape[a] for a in inside), _merged_axis_size(
        source.shape, steps, result_steps, contiguous_axes[-1]
    )


def _merged_axis_size(
    shape: Sequence[int], steps: Sequence[int], result_steps: Sequence[int], axis: int
) -> int:
    """Return the number of elements of an axis and of the axes that continue it in both orders.

    torch merges such axes, like the height and width of an image.
    """
    size, following = shape[axis], [axis]
    while following:
        ends = (steps[axis] * size, result_steps[axis] * size)
        following = [
            a for a, n in enumerate(shape) if n > 1 and (steps[a], result_steps[a]) == ends
        ]
        size *= math.prod(shape[a] for a in following)
    return size
