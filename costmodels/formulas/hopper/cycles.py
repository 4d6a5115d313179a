"""Products in tiles, by the cycles of a multiprocessor: the fastest tile and split counts."""

from __future__ import annotations

import math

from msgspec import Struct

from costmodels.formulas.machine import Machine
from costmodels.formulas.tiles import SPLIT_COST, Product
from irgraph.ir.dtypes import ITEMSIZE
from irgraph.ir.points.point_values import maximum, minimum

SHARE = 0.8
"""Maximum share of DRAM bandwidth that products reach."""

SPLITS, DEEP = (2, 4, 8, 16), 512
"""Numbers of parts into which the depth of a single product is split, and the minimum depth for
that."""


class Kernels(Struct, frozen=True):
    """A library's kernels for products of one kind.

    Attributes:
        tiles: columns and rows of a tile, and FLOP per cycle of a multiprocessor on it.
        element: cycles in which a tile writes an element of its result.
        begin: cycles in which a tile starts and ends.
        slice: depth to whose multiples sums are padded.
        start: microseconds in which a kernel starts and ends.
    """

    tiles: tuple[tuple[int, int, int], ...]
    element: float
    begin: float
    slice: int
    start: float

    def time(self, product: Product, machine: Machine) -> float:
        """Return microseconds of a product."""
        memory = machine.stream(product.traffic, SHARE)
        return maximum(self._tiled(product, machine), memory) + self.start

    def _tiled(self, product: Product, machine: Machine) -> float:
        p, sms = product, machine.sheet.sms
        area = p.rows * p.columns * ITEMSIZE["f32"]
        best = math.inf
        for x, y, rate in self.tiles:
            grid = p.batch * -(-p.columns // x) * -(-p.rows // y)
            for parts in (1, *(SPLITS if p.batch == 1 and p.depth >= DEEP else ())):
                depth = -(-p.depth // (self.slice * parts)) * self.slice
                cycles = x * y * (2 * depth / rate + self.element) + self.begin
                time = machine.cycles(-(-grid * parts // sms) * cycles)
                sums = SPLIT_COST + machine.stream(area * (parts + 1)) if parts > 1 else 0.0
                best = minimum(best, time + sums)
        return best
