"""Durations of kernels in many steps under many draws, as products of small matrices.

The duration of a kernel is its expected length plus a share of its family's error, clipped at zero.
So the lengths of all steps under all draws, and sums of them, are a matrix of values by draw times
a matrix of values by step. The few draws that would be negative are corrected afterwards.
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
        lengths: expected durations, ``float64[kernels, steps]``.
        deviations: standard deviations, ``float64[kernels, steps]``.
        families: the row of ``errors`` of each kernel, ``int64[kernels]``.
        errors: draws from a normal distribution, of each family, ``float64[families, draws]``.
    """

    rows: Ints
    lengths: Floats
    deviations: Floats
    families: Ints
    errors: Floats


class Products:
    """Factors of the lengths of kernels.

    Attributes:
        basis: values by draw: one, the families' errors, and space for a row,
            ``float64[draws, families + 2]``.
        member: whether a kernel is of a family, ``float64[families, kernels]``.
        clipped_counts: number of draws, from the lowest error on, in which a kernel's length would
            be negative, ``int64[kernels, steps]``.
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
        shape: numbers of draws and steps.
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
        """Return the draws in which a kernel's length may be negative, and how far below zero."""
        entry = self._shortfalls.get(kernel)
        if entry is None:
            family = self.products.families[kernel]
            draws = self.products.order[family, : self.max_clipped[kernel]]
            error = self.products.basis[draws, 1 + family, None]
            lengths = self.lengths[kernel] + self.deviations[kernel] * error
            entry = self._shortfalls[kernel] = draws, np.maximum(-lengths, 0.0)
        return entry

    def total(self, counts: Floats, row: Floats | float) -> Floats:
        """Return the total duration of many kernels and a row of draws, ``float64[draws, steps]``.

        ``counts`` is the number of occurrences of each kernel.
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
    """Running sum of the lengths of kernels, to be evaluated under some draws.

    Attributes:
        by_step: values by step, ``float64[families + 2, steps]``.
        shortfall: correction for lengths that would be negative, ``float64[draws, steps]``.
    """

    def __init__(self, lengths: Lengths) -> None:
        self.lengths = lengths
        self.by_step = np.zeros((lengths.products.basis.shape[1], lengths.shape[1]))
        self.shortfall = np.zeros(lengths.shape)
        self.has_shortfall = False
        self.reset()

    def reset(self) -> None:
        """Reset the sum to zero."""
        self.by_step[:-1] = 0.0
        self.by_step[-1] = 1.0
        if self.has_shortfall:
            self.shortfall.fill(0.0)
            self.has_shortfall = False

    def add(self, kernels: Iterable[int], sign: float) -> None:
        """Add the lengths of kernels to the sum, or subtract them if ``sign`` is -1."""
        lengths = self.lengths
        for kernel in kernels:
            self.by_step[0] += sign * lengths.lengths[kernel]
            self.by_step[1 + lengths.products.families[kernel]] += sign * lengths.deviations[kernel]
            if lengths.max_clipped[kernel]:
                draws, shortfall = lengths.shortfall_of(kernel)
                self.shortfall[draws] += sign * shortfall
                self.has_shortfall = True

    def sums_of(self, draws: Ints, row: Floats) -> Floats:
        """Return the sum plus a row, for some of the draws, ``float64[draws, steps]``."""
        by_draw = self.lengths.products.basis.take(draws, 0)
        by_draw[:, -1] = row
        sums: Floats = by_draw @ self.by_step
        if self.has_shortfall:
            sums += self.shortfall.take(draws, 0)
        return sums
