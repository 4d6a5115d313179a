"""The power limit of a card over a whole step: the clock that its mix of kernels sustains.

An isolated kernel runs at the boost clock for some milliseconds. In a step,
kernels follow each other without a pause. The card's governor averages their draw over tens of
milliseconds and lowers the clock of the multiprocessors until the mean is at the limit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from irgraph.ir.cost import COLLECTIVE, Kernel, PowerDraw, Priced
from irgraph.ir.op import Op
from irgraph.schedule.tasks import Floats

EXPONENT = 2.1
"""Power of the clock with which the draw of large products grows. H100 SXM (700 W, 132
multiprocessors) and PCIe (350 W, 114) sustain 719.7 and 471.8 TFLOP/s in bf16, 668.4 and 449.7 in
f16, in square products of side 10,240 (zzc0721/torch-performance-test-data): by multiprocessor 1.98
and 2.19. Voltage and clock fall together, so that theory has 2 to 3."""

STREAMING = 0.6
"""Draw of all other kernels as a share of the limit, an assumption. An H100 whose memory streams
needs about half: 105 W at 3.9 pJ a bit (O'Connor et al. 2017), as much on the chip, 80 W idle, and
its clocks. An RTX 3090 reaches 0.9 of 350 W so (ashalliants/ninfer-3090, pull request 72)."""

MIN_CLOCK = 0.2
"""Minimum share of the clock that is considered."""

BISECTIONS = 24
"""Number of bisections: to seven digits, rounded to six."""


class Load(NamedTuple):
    """The kernels of a step, summed at each point: times in microseconds.

    Attributes:
        products: time of the kernels of known draw.
        energy: their energy at their isolated clocks, in microseconds at the limit.
        others: time of all other kernels except concurrent ones.
    """

    products: Floats
    energy: Floats
    others: Floats


def load_of(times: Floats, powers: Floats, counts: NDArray[np.int64]) -> Load:
    """Return the load of a step's kernels at each point.

    ``times`` and ``powers`` have all kernels, ``float64[kernels, points]``. ``counts`` has the
    number of times that each runs in the step, 0 for concurrent ones (``is_concurrent``).
    """
    totals = times * counts[:, None]
    product_totals = np.where(powers > 0, totals, 0.0)
    products = product_totals.sum(0)
    energy = (product_totals * powers).sum(0)
    others = totals.sum(0) - products
    return Load(products, energy, others)


def is_concurrent(kernel: Kernel) -> bool:
    """Return whether a kernel runs at the same time as others, to whose mean draw it adds no time.

    Collectives have separate streams. Their draw is not modelled.
    """
    return kernel.family == COLLECTIVE


def draws(load: Load) -> Floats:
    """Return the mean draw of isolated kernels at each point, as a share of the limit."""
    time = load.products + load.others
    energy = load.energy + STREAMING * load.others
    return energy / np.maximum(time, 1e-9)


def clock_shares(load: Load) -> Floats:
    """Return the share of the clock that the limit allows at each point, 1 if it does not bind."""
    spare = (1 - STREAMING) * load.others
    binds = load.energy > load.products + spare
    low = np.full_like(spare, MIN_CLOCK)
    high = np.ones_like(spare)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        energy = load.energy * middle ** (EXPONENT - 1)
        exceeds = energy > load.products / middle + spare
        low = np.where(exceeds, low, middle)
        high = np.where(exceeds, middle, high)
    return np.where(binds, np.round(low, 6), 1.0)


def within_power(priced: Priced) -> Priced:
    """Return the priced graph with the times that its kernels take within the power limit.

    A graph without a kernel of known draw is returned unchanged.
    """
    kernels = [kernel for op_kernels in priced.kernels.values() for kernel in op_kernels]
    if not any(kernel.power for kernel in kernels):
        return priced
    times = np.array([[kernel.time] for kernel in kernels])
    powers = np.array([[kernel.power] for kernel in kernels])
    counts = np.array([not is_concurrent(kernel) for kernel in kernels], np.int64)
    load = load_of(times, powers, counts)
    draw = float(draws(load)[0])
    clock = float(clock_shares(load)[0])
    if clock == 1.0:
        return replace(priced, power=PowerDraw(draw))
    slower_by_op: dict[Op, tuple[Kernel, ...]] = {}
    for op, op_kernels in priced.kernels.items():
        slower_by_op[op] = tuple(slow_down(kernel, clock) for kernel in op_kernels)
    added = float(load.products[0]) * (1 / clock - 1)
    return replace(priced, kernels=slower_by_op, power=PowerDraw(draw, clock, added))


def slow_down(kernel: Kernel, clock: float) -> Kernel:
    """Return a kernel at a share of its clock, on which only products depend."""
    if not kernel.power:
        return kernel
    formula = f"{kernel.formula}; at {clock:.3g} of its clock, within the power limit"
    time = kernel.time / clock
    spread = kernel.spread / clock
    return replace(kernel, time=time, spread=spread, formula=formula)
