"""How long kernels take in many steps under many draws, as products of small matrices.

A kernel takes its expected length and a share of its family's error, but no less than nothing. So
the lengths of all steps under all draws are what differs by step times what differs by draw; where
the same draws leave nothing of a kernel in all steps, these are zero in the second.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from irgraph.schedule.tasks import Floats, Ints


class Work(Struct, frozen=True):
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
        steps: the expected length, its deviation and one, ``float64[kernels, steps, 3]``.
        draws: of each family, one and its error, ``float64[families, 2, draws]``.
        places: of each family, the place of each draw by its error, ``int64[families, draws]``.
        nothing: how many draws, from the lowest error on, leave nothing of a kernel,
            ``int64[kernels, steps]``.
    """

    def __init__(self, work: Work) -> None:
        lengths, deviations, errors = work.lengths, work.deviations, work.errors
        self.steps = np.stack([lengths, deviations, np.ones_like(lengths)], 2)
        self.draws = np.stack([np.ones_like(errors), errors], 1)
        self.families = work.families.tolist()
        self.places = errors.argsort(1).argsort(1)
        self.nothing = np.zeros(lengths.shape, np.int64)
        varies = deviations > 0.0
        least = np.divide(-lengths, deviations, out=np.full(lengths.shape, -np.inf), where=varies)
        for family, ordered in enumerate(np.sort(errors, 1)):
            mine = work.families == family
            self.nothing[mine] = ordered.searchsorted(least[mine])

    def of(self, some: slice) -> Lengths:
        """Return the lengths in some of the steps."""
        return Lengths(self, some)


class Lengths:
    """Lengths of kernels in some steps, to be added to when they start.

    Attributes:
        shape: steps and draws.
    """

    def __init__(self, of: Products, some: slice) -> None:
        self.of = of
        self.steps = np.ascontiguousarray(of.steps[:, some])
        self.shape = self.steps.shape[1], of.draws.shape[2]
        nothing = of.nothing[:, some]
        self.least: Sequence[int] = nothing.min(1, initial=self.shape[1]).tolist()
        self.most: Sequence[int] = nothing.max(1, initial=0).tolist()
        self.known: dict[int, Floats] = {}
        self.row, self.took = np.empty((3, self.shape[1])), np.empty(self.shape)

    def add(self, kernel: int, shift: Floats | float, times: Floats) -> None:
        """Add the lengths of a kernel, and a row of draws, to times, ``float64[steps, draws]``."""
        if self.least[kernel] != self.most[kernel]:
            draws = self.of.draws[self.of.families[kernel]]
            np.matmul(self.steps[kernel, :, :2], draws, out=self.took)
            np.maximum(self.took, 0.0, out=self.took)
            times += shift
        else:
            self.row[:2] = self._draws(kernel)
            self.row[2] = shift
            np.matmul(self.steps[kernel], self.row, out=self.took)
        times += self.took

    def _draws(self, kernel: int) -> Floats:
        """Return what differs by draw, zero where nothing is left of a kernel."""
        found = self.known.get(kernel)
        if found is None:
            family, nothing = self.of.families[kernel], self.most[kernel]
            found = self.of.draws[family]
            if nothing:
                found = found * (self.of.places[family] >= nothing)
            self.known[kernel] = found
        return found
