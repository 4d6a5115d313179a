"""Pricing of calls at many sizes: each family's rule runs once, on numbers with many values."""

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
from irgraph.ir.points.kernel_regimes import (
    Floats,
    Ints,
    KernelRegime,
    Sizes,
    dims_of,
    evaluate_size,
)
from irgraph.ir.points.point_values import PointValues, ScalarOnlyError, SplitError, as_array
from irgraph.ir.ranks import is_collective
from irgraph.ir.resize import DimSubstitution
from irgraph.ir.tensor import Tensor

MAX_PARTS = 256
"""Maximum number of parts into which the conditions of one call may split the points; with more
parts, each point is priced separately."""


def price_calls(
    graph: Graph,
    machine: Machine,
    sparse: Mapping[str, Tensor],
    loose: bool,
    dims: Mapping[str, Ints],
) -> list[tuple[KernelRegime, ...] | None]:
    """Return, for each top-level call, its work at every point.

    ``dims`` has the sizes of dimensions, ``int64[points]`` each, ``graph`` the sizes of the others;
    ``sparse`` has the values of sparse tensors. Facts on a call that do not depend on the device
    are cached in ``Sizes``. ``None`` marks a call whose rule does not support many points.
    """
    batch = _Batch(graph, machine, sparse, loose, dims)
    return [batch.regimes(op) for op in graph.top_level()]


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
        self.cache = dims.known if isinstance(dims, Sizes) else {}
        self.points = len(next(iter(dims.values()))) if dims else 1
        self.distinct: dict[tuple[str, ...], tuple[Ints, Ints]] = {}

    def regimes(self, op: Op) -> tuple[KernelRegime, ...] | None:
        """Return one call's work, ``None`` if its points must be priced individually."""
        if any(is_collective(inner) for inner in op.walk()):
            return None
        op_dims = self.cache.get(op)
        if op_dims is None:
            op_dims = self.cache[op] = dims_of(op)
        names = tuple(name for name in self.dims if name in op_dims)
        if names not in self.distinct:
            columns = [self.dims[name] for name in names]
            self.distinct[names] = _distinct(columns, self.points)
        rows, inverse = self.distinct[names]
        try:
            call_regimes = tuple(self._split_regimes(op, names, rows))
        except (ScalarOnlyError, AttributeError, TypeError):
            return None  # a rule may use any method of Python's numbers, which one point supports
        return tuple(_expand(piece, inverse) for piece in call_regimes)

    def _split_regimes(self, op: Op, names: Sequence[str], rows: Ints) -> Iterator[KernelRegime]:
        """Yield the work of a call by parts; ``rows`` has the sizes, ``int64[points, names]``."""
        remaining = [np.arange(len(rows))]
        parts = 0
        while remaining:
            points = remaining.pop()
            parts += 1
            if parts > MAX_PARTS:
                raise ScalarOnlyError("too many parts")
            try:
                yield self._regime(op, names, rows, points)
            except SplitError as split:
                remaining += [points[~split.holds], points[split.holds]]

    def _regime(self, op: Op, names: Sequence[str], rows: Ints, points: Ints) -> KernelRegime:
        key = op, points.tobytes()
        if key not in self.cache:
            self.cache[key] = self._resize(op, names, rows, points)
        resized, sparse = self.cache[key]
        pricer = Pricer(self.machine, sparse, {}, False, self.loose, {}, reuse_equal_calls=False)
        pricer.visit(resized)
        index_by_id = {inner: index for index, inner in enumerate(resized.walk())}
        kernels = {index_by_id[key]: op_kernels for key, op_kernels in pricer.kernels.items()}
        all_kernels = [kernel for op_kernels in kernels.values() for kernel in op_kernels]
        times, spreads, powers = (
            _column(all_kernels, name, len(points)) for name in ("time", "spread", "power")
        )
        first_kernels = {
            index: tuple(map(_first_point, op_kernels)) for index, op_kernels in kernels.items()
        }
        unknown = tuple(index_by_id[leaf] for leaf in pricer.unknown)
        return KernelRegime(points, first_kernels, unknown, times, spreads, powers)

    def _resize(
        self, op: Op, names: Sequence[str], rows: Ints, points: Ints
    ) -> tuple[Op, Mapping[str, Tensor]]:
        """Return a call with its sizes at some points, and the values of sparse tensors."""
        sizes_by_dim: dict[str, Any] = {
            name: _size(rows[points, index]) for index, name in enumerate(names)
        }
        change = DimSubstitution({**self.graph.dims, **sizes_by_dim}, evaluate_size)
        try:
            resized = change.op(op)
            return resized, {name: change.tensor(tensor) for name, tensor in self.sparse.items()}
        except ValueError:
            raise ScalarOnlyError("an impossible size") from None


def _distinct(columns: Sequence[Ints], points: int) -> tuple[Ints, Ints]:
    """Return the distinct rows of columns, and for each point the index of its row."""
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


def _first_point(kernel: Kernel) -> Kernel:
    """Return a kernel with the numbers of the first point."""
    names = ("time", "spread", "link_bytes", "power")
    numbers = {name: float(as_array(getattr(kernel, name), 1)[0]) for name in names}
    return replace(kernel, outside=False, **numbers)


def _expand(regime: KernelRegime, inverse: Ints) -> KernelRegime:
    """Expand a regime of distinct sizes to all points."""
    positions = np.full(int(inverse.max(initial=0)) + 1, -1)
    positions[regime.points] = np.arange(len(regime.points))
    points = np.flatnonzero(positions[inverse] >= 0)
    columns = positions[inverse[points]]
    names = ("times", "spreads", "powers")
    numbers = {name: getattr(regime, name)[:, columns] for name in names}
    return replace(regime, points=points, **numbers)
