"""Pricing calls at many sizes at once: each family's rule runs on numbers with many values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from costmodels.formulas.machine import Machine
from costmodels.pricing.price import Pricer
from irgraph.ir.cost import Kernel
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.points.pieces import Floats, Ints, KernelRegime, Sizes, dims_of, evaluate_size
from irgraph.ir.points.point_values import PointValues, ScalarOnlyError, SplitError, as_array
from irgraph.ir.ranks import is_collective
from irgraph.ir.resize import DimSubstitution
from irgraph.ir.tensor import Tensor

MOST_PARTS = 256
"""Parts into which the conditions of one call may split the points; beyond, each is run alone."""


def price_calls(
    graph: Graph,
    machine: Machine,
    sparse: Mapping[str, Tensor],
    loose: bool,
    dims: Mapping[str, Ints],
) -> list[tuple[KernelRegime, ...] | None]:
    """Return, for each top-level call, its work at every point.

    ``dims`` holds the sizes of dimensions, ``int64[points]`` each, in ``graph`` those of the
    others; ``sparse`` the values of sparse tensors. What follows for a call on any device is kept
    with ``Sizes``. ``None`` stands for a call whose rule cannot be
    run for many points at once.
    """
    batch = _Batch(graph, machine, sparse, loose, dims)
    return [batch.pieces(op) for op in graph.top_level()]


class _Batch:
    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        sparse: Mapping[str, Tensor],
        loose: bool,
        dims: Mapping[str, Ints],
    ) -> None:
        self.graph, self.machine, self.sparse, self.loose = graph, machine, sparse, loose
        self.dims = dims
        self.known = dims.known if isinstance(dims, Sizes) else {}
        self.points = len(next(iter(dims.values()))) if dims else 1
        self.distinct: dict[tuple[str, ...], tuple[Ints, Ints]] = {}

    def pieces(self, op: Op) -> tuple[KernelRegime, ...] | None:
        """Return one call's work, ``None`` where points must be priced one by one."""
        if any(is_collective(inner) for inner in op.walk()):
            return None
        used = self.known.get(id(op))
        if used is None:
            used = self.known[id(op)] = dims_of(op)
        names = tuple(name for name in self.dims if name in used)
        if names not in self.distinct:
            columns = [self.dims[name] for name in names]
            self.distinct[names] = _distinct(columns, self.points)
        rows, inverse = self.distinct[names]
        try:
            found = tuple(self._parts(op, names, rows))
        except (ScalarOnlyError, AttributeError, TypeError):
            return None  # a rule may do anything with a number: those of one point are Python's own
        return tuple(_spread(piece, inverse) for piece in found)

    def _parts(self, op: Op, names: Sequence[str], rows: Ints) -> Iterator[KernelRegime]:
        """Yield the work of a call by parts; ``rows`` holds sizes, ``int64[points, names]``."""
        left = [np.arange(len(rows))]
        parts = 0
        while left:
            points = left.pop()
            parts += 1
            if parts > MOST_PARTS:
                raise ScalarOnlyError("too many parts")
            try:
                yield self._piece(op, names, rows, points)
            except SplitError as split:
                left += [points[~split.holds], points[split.holds]]

    def _piece(self, op: Op, names: Sequence[str], rows: Ints, points: Ints) -> KernelRegime:
        key = id(op), points.tobytes()
        if key not in self.known:
            self.known[key] = self._sized(op, names, rows, points)
        sized, sparse = self.known[key]
        pricer = Pricer(self.machine, sparse, {}, False, self.loose, {}, remember=False)
        pricer.visit(sized)
        places = {id(inner): at for at, inner in enumerate(sized.walk())}
        kernels = {places[key]: found for key, found in pricer.kernels.items()}
        every = [kernel for found in kernels.values() for kernel in found]
        times, spreads = (_column(every, name, len(points)) for name in ("time", "spread"))
        first = {at: tuple(map(_first, found)) for at, found in kernels.items()}
        unknown = tuple(places[id(leaf)] for leaf in pricer.unknown)
        return KernelRegime(points, first, unknown, times, spreads)

    def _sized(
        self, op: Op, names: Sequence[str], rows: Ints, points: Ints
    ) -> tuple[Op, Mapping[str, Tensor]]:
        """Return a call with its sizes at some points, and the values of sparse tensors."""
        some: dict[str, Any] = {name: _size(rows[points, at]) for at, name in enumerate(names)}
        change = DimSubstitution({**self.graph.dims, **some}, evaluate_size)
        try:
            sized = change.op(op)
            return sized, {name: change.tensor(tensor) for name, tensor in self.sparse.items()}
        except ValueError:
            raise ScalarOnlyError("an impossible size") from None


def _distinct(columns: Sequence[Ints], points: int) -> tuple[Ints, Ints]:
    """Return the distinct rows of columns, and for each point the place of its row."""
    if not columns:
        return np.zeros((1, 0), np.int64), np.zeros(points, np.int64)
    rows, inverse = np.unique(np.stack(columns, 1), axis=0, return_inverse=True)
    return rows, inverse.reshape(-1)


def _size(values: Ints) -> PointValues | int:
    return int(values[0]) if (values == values[0]).all() else PointValues(values)


def _column(kernels: Sequence[Kernel], name: str, points: int) -> Floats:
    if not kernels:
        return np.zeros((0, points))
    return np.stack([as_array(getattr(kernel, name), points) for kernel in kernels])


def _first(kernel: Kernel) -> Kernel:
    """Return a kernel with the times and bytes of the first point."""
    time, spread, links = (
        float(as_array(value, 1)[0]) for value in (kernel.time, kernel.spread, kernel.link_bytes)
    )
    return replace(kernel, time=time, spread=spread, outside=False, link_bytes=links)


def _spread(piece: KernelRegime, inverse: Ints) -> KernelRegime:
    """Return a piece of distinct sizes as one of all points."""
    place = np.full(int(inverse.max(initial=0)) + 1, -1)
    place[piece.points] = np.arange(len(piece.points))
    points = np.flatnonzero(place[inverse] >= 0)
    chosen = place[inverse[points]]
    return replace(
        piece, points=points, times=piece.times[:, chosen], spreads=piece.spreads[:, chosen]
    )
