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
        one = np.ones(errors.shape[1])
        self.basis = np.column_stack([one, errors.T, one])
        self.member = (work.families == np.arange(len(errors))[:, None]).astype(np.float64)
        self.order = errors.argsort(1)
        self.nothing = np.zeros(lengths.shape, np.int64)
        varies = deviations > 0.0
        least = np.divide(-lengths, deviations, out=np.full(lengths.shape, -np.inf), where=varies)
        for family, ordered in enumerate(np.sort(errors, 1)):
            mine = work.families == family
            self.nothing[mine] = ordered.searchsorted(least[mine])

    def bounds(self, some: Ints) -> tuple[Floats, Floats]:
        """Return bounds of the lengths in some steps, ``float64[kernels, draws]`` each.

        The longest of straight lines is below the chord between two errors, the shortest above.
        """
        work = self.work
        lengths, deviations = work.lengths[:, some], work.deviations[:, some]
        errors = work.errors
        ends = np.minimum(errors.min(1), -1.0), np.maximum(errors.max(1), 1.0)
        low, high = (end[work.families, None] for end in ends)
        mine = errors[work.families]
        found = []
        for extreme in (np.max, np.min):
            middle, first, last = (
                extreme(lengths + deviations * error, 1, keepdims=True)
                for error in (0.0, low, high)
            )
            up, down = (last - middle) / high, (first - middle) / low
            found.append(np.maximum(middle + np.where(mine > 0.0, up, down) * mine, 0.0))
        upper, lower = found
        return upper, np.minimum(lower, upper)

    def of(self, some: Ints) -> Lengths:
        """Return the lengths in some of the steps."""
        return Lengths(self, some)


class Lengths:
    """Lengths of kernels in some steps, under all draws.

    Attributes:
        shape: draws and steps.
    """

    def __init__(self, of: Products, some: Ints) -> None:
        self.of = of
        self.shape = len(of.basis), len(some)
        self.lengths = of.work.lengths[:, some]
        self.deviations = of.work.deviations[:, some]
        self.most: list[int] = of.nothing[:, some].max(1, initial=0).tolist()
        self._lacking: dict[int, tuple[Ints, Floats]] = {}
        self.left, self.right = np.empty((self.shape[0], 3)), np.ones((3, self.shape[1]))
        self.left[:, 0] = 1.0
        self.took = np.empty(self.shape)

    def add(self, kernel: int, shift: Floats | float, times: Floats) -> None:
        """Add the lengths of a kernel, and a row of draws, to times, ``float64[draws, steps]``."""
        self.left[:, 1] = self.of.basis[:, 1 + self.of.families[kernel]]
        self.left[:, 2] = shift
        self.right[0], self.right[1] = self.lengths[kernel], self.deviations[kernel]
        times += np.matmul(self.left, self.right, out=self.took)
        if self.most[kernel]:
            draws, lacking = self.lacking(kernel)
            times[draws] += lacking

    def lacking(self, kernel: int) -> tuple[Ints, Floats]:
        """Return the draws that may leave less than nothing of a kernel, and what lacks in them."""
        found = self._lacking.get(kernel)
        if found is None:
            family = self.of.families[kernel]
            draws = self.of.order[family, : self.most[kernel]]
            error = self.of.basis[draws, 1 + family, None]
            less = self.lengths[kernel] + self.deviations[kernel] * error
            found = self._lacking[kernel] = draws, np.maximum(-less, 0.0)
        return found

    def total(self, counts: Floats, row: Floats | float) -> Floats:
        """Return how long many kernels and a row of draws take together.

        ``counts`` says how many of each kernel there are.
        """
        left = self.of.basis.copy()
        left[:, -1] = row
        right = np.ones((left.shape[1], self.shape[1]))
        right[0] = counts @ self.lengths
        right[1:-1] = (self.of.member * counts) @ self.deviations
        found: Floats = left @ right
        for kernel in np.flatnonzero(counts).tolist():
            if self.most[kernel]:
                draws, lacking = self.lacking(kernel)
                found[draws] += counts[kernel] * lacking
        return found


class Sums:
    """Lengths of kernels added up one after the other, to be looked at under some draws.

    Attributes:
        right: what differs by step, ``float64[families + 2, steps]``.
        lacking: what lacks to make none less than nothing, ``float64[draws, steps]``.
    """

    def __init__(self, lengths: Lengths) -> None:
        self.of = lengths
        self.right = np.zeros((lengths.of.basis.shape[1], lengths.shape[1]))
        self.lacking = np.zeros(lengths.shape)
        self.lacks = False
        self.begin()

    def begin(self) -> None:
        """Take no kernels."""
        self.right[:-1] = 0.0
        self.right[-1] = 1.0
        if self.lacks:
            self.lacking.fill(0.0)
            self.lacks = False

    def add(self, kernels: Iterable[int], sign: float) -> None:
        """Add kernels to what was taken, or take them off."""
        of = self.of
        for kernel in kernels:
            self.right[0] += sign * of.lengths[kernel]
            self.right[1 + of.of.families[kernel]] += sign * of.deviations[kernel]
            if of.most[kernel]:
                draws, lacking = of.lacking(kernel)
                self.lacking[draws] += sign * lacking
                self.lacks = True

    def under(self, draws: Ints, row: Floats) -> Floats:
        """Return the sums and a row, of some of the draws, ``float64[draws, steps]``."""
        left = self.of.of.basis.take(draws, 0)
        left[:, -1] = row
        found: Floats = left @ self.right
        if self.lacks:
            found += self.lacking.take(draws, 0)
        return found
