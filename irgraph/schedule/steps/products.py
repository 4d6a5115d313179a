"""How long kernels take in many steps under many draws, as products of small matrices.

A kernel takes its expected length and a share of its family's error, but no less than nothing. So
the lengths of all steps under all draws, and sums of them, are what differs by draw times what
differs by step; the few draws that would leave less than nothing of a kernel are added to it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from irgraph.schedule.tasks import Floats, Ints


class KernelSamples(Struct, frozen=True):
    """Kernels of many steps. Times in microseconds.

    Attributes:
        rows: the kernel that each task of device work runs, ``int64[work]``.
        lengths: expected, ``float64[kernels, steps]``.
        deviations: standard deviations, ``float64[kernels, steps]``.
        families: which of ``errors`` each takes, ``int64[kernels]``.
        errors: draws from a normal distribution, of each family, ``float64[families, draws]``.
    """

    rows: Ints
    lengths: Floats
    deviations: Floats
    families: Ints
    errors: Floats


class Products:
    """What the lengths of kernels are made of.

    Attributes:
        basis: what differs by draw: one, the families' errors, and room for a row,
            ``float64[draws, families + 2]``.
        member: whether a kernel is of a family, ``float64[families, kernels]``.
        nothing: how many draws, from the lowest error on, leave nothing of a kernel,
            ``int64[kernels, steps]``.
        order: of each family, its draws from the lowest error on, ``int64[families, draws]``.
    """

    def __init__(self, work: KernelSamples) -> None:
        lengths, deviations, errors = work.lengths, work.deviations, work.errors
        self.work = work
        self.families: list[int] = work.families.tolist()
        ones = np.ones(errors.shape[1])
        self.basis = np.column_stack([ones, errors.T, ones])
        self.member = (work.families == np.arange(len(errors))[:, None]).astype(np.float64)
        self.order = errors.argsort(1)
        self.clipped_counts = np.zeros(lengths.shape, np.int64)
        varies = deviations > 0.0
        zero_errors = np.divide(
            -lengths, deviations, out=np.full(lengths.shape, -np.inf), where=varies
        )
        for family, ordered in enumerate(np.sort(errors, 1)):
            members = work.families == family
            self.clipped_counts[members] = ordered.searchsorted(zero_errors[members])

    def bounds(self, steps: Ints) -> tuple[Floats, Floats]:
        """Return bounds of the lengths in some steps, ``float64[kernels, draws]`` each.

        The longest of straight lines is below the chord between two errors, the shortest above.
        """
        work = self.work
        lengths, deviations = work.lengths[:, steps], work.deviations[:, steps]
        errors = work.errors
        ends = np.minimum(errors.min(1), -1.0), np.maximum(errors.max(1), 1.0)
        low, high = (end[work.families, None] for end in ends)
        kernel_errors = errors[work.families]
        bounds = []
        for extreme in (np.max, np.min):
            middle, first, last = (
                extreme(lengths + deviations * error, 1, keepdims=True)
                for error in (0.0, low, high)
            )
            up, down = (last - middle) / high, (first - middle) / low
            bounds.append(
                np.maximum(middle + np.where(kernel_errors > 0.0, up, down) * kernel_errors, 0.0)
            )
        upper, lower = bounds
        return upper, np.minimum(lower, upper)

    def lengths_of(self, steps: Ints) -> Lengths:
        """Return the lengths in some of the steps."""
        return Lengths(self, steps)


class Lengths:
    """Lengths of kernels in some steps, under all draws.

    Attributes:
        shape: draws and steps.
    """

    def __init__(self, products: Products, steps: Ints) -> None:
        self.products = products
        self.shape = len(products.basis), len(steps)
        self.lengths = products.work.lengths[:, steps]
        self.deviations = products.work.deviations[:, steps]
        self.max_clipped: list[int] = products.clipped_counts[:, steps].max(1, initial=0).tolist()
        self._shortfalls: dict[int, tuple[Ints, Floats]] = {}
        self.by_draw, self.by_step = np.empty((self.shape[0], 3)), np.ones((3, self.shape[1]))
        self.by_draw[:, 0] = 1.0
        self.durations = np.empty(self.shape)

    def add(self, kernel: int, shift: Floats | float, times: Floats) -> None:
        """Add the lengths of a kernel, and a row of draws, to times, ``float64[draws, steps]``."""
        self.by_draw[:, 1] = self.products.basis[:, 1 + self.products.families[kernel]]
        self.by_draw[:, 2] = shift
        self.by_step[0], self.by_step[1] = self.lengths[kernel], self.deviations[kernel]
        times += np.matmul(self.by_draw, self.by_step, out=self.durations)
        if self.max_clipped[kernel]:
            draws, shortfall = self.shortfall_of(kernel)
            times[draws] += shortfall

    def shortfall_of(self, kernel: int) -> tuple[Ints, Floats]:
        """Return the draws that may leave less than nothing of a kernel, and what lacks in them."""
        entry = self._shortfalls.get(kernel)
        if entry is None:
            family = self.products.families[kernel]
            draws = self.products.order[family, : self.max_clipped[kernel]]
            error = self.products.basis[draws, 1 + family, None]
            lengths = self.lengths[kernel] + self.deviations[kernel] * error
            entry = self._shortfalls[kernel] = draws, np.maximum(-lengths, 0.0)
        return entry

    def total(self, counts: Floats, row: Floats | float) -> Floats:
        """Return how long many kernels and a row of draws take together.

        ``counts`` says how many of each kernel there are.
        """
        by_draw = self.products.basis.copy()
        by_draw[:, -1] = row
        by_step = np.ones((by_draw.shape[1], self.shape[1]))
        by_step[0] = counts @ self.lengths
        by_step[1:-1] = (self.products.member * counts) @ self.deviations
        times: Floats = by_draw @ by_step
        for kernel in np.flatnonzero(counts).tolist():
            if self.max_clipped[kernel]:
                draws, shortfall = self.shortfall_of(kernel)
                times[draws] += counts[kernel] * shortfall
        return times


class Sums:
    """Lengths of kernels added up one after the other, to be looked at under some draws.

    Attributes:
        right: what differs by step, ``float64[families + 2, steps]``.
        lacking: what lacks to make none less than nothing, ``float64[draws, steps]``.
    """

    def __init__(self, lengths: Lengths) -> None:
        self.lengths = lengths
        self.by_step = np.zeros((lengths.products.basis.shape[1], lengths.shape[1]))
        self.shortfall = np.zeros(lengths.shape)
        self.has_shortfall = False
        self.reset()

    def reset(self) -> None:
        """Take no kernels."""
        self.by_step[:-1] = 0.0
        self.by_step[-1] = 1.0
        if self.has_shortfall:
            self.shortfall.fill(0.0)
            self.has_shortfall = False

    def add(self, kernels: Iterable[int], sign: float) -> None:
        """Add kernels to what was taken, or take them off."""
        lengths = self.lengths
        for kernel in kernels:
            self.by_step[0] += sign * lengths.lengths[kernel]
            self.by_step[1 + lengths.products.families[kernel]] += sign * lengths.deviations[kernel]
            if lengths.max_clipped[kernel]:
                draws, shortfall = lengths.shortfall_of(kernel)
                self.shortfall[draws] += sign * shortfall
                self.has_shortfall = True

    def sums_of(self, draws: Ints, row: Floats) -> Floats:
        """Return the sums and a row, of some of the draws, ``float64[draws, steps]``."""
        by_draw = self.lengths.products.basis.take(draws, 0)
        by_draw[:, -1] = row
        sums: Floats = by_draw @ self.by_step
        if self.has_shortfall:
            sums += self.shortfall.take(draws, 0)
        return sums
