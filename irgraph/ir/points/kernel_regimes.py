"""Prices of calls at many sizes together, which cost models pass to the prediction of variants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from irgraph.ir.cost import Kernel
from irgraph.ir.dim import Dim, evaluate
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


class KernelRegime(Struct, frozen=True):
    """The work of one call at the points at which it has the same kernels.

    Attributes:
        points: indices of these points, ``int64[points]``.
        kernels: the work of each op that a cost model covers, by the op's position among the call
            and all ops below it, outer before inner; its times are the times at the first point.
        unknown: positions of leaves that no cost model covers.
        times: microseconds of all kernels in order, ``float64[kernels, points]``.
        spreads: half the width of each 90 % interval, ``float64[kernels, points]``.
        powers: draw of each kernel (``Kernel.power``), ``float64[kernels, points]``.
    """

    points: Ints
    kernels: Mapping[int, tuple[Kernel, ...]]
    unknown: tuple[int, ...]
    times: Floats
    spreads: Floats
    powers: Floats

    @property
    def structure(self) -> object:
        """The properties on which a schedule depends, except times."""
        kinds = tuple(
            (position, tuple((k.launch, k.blocking, k.family, k.group) for k in ks))
            for position, ks in self.kernels.items()
        )
        return kinds, self.unknown


class Sizes(dict[str, Ints]):
    """Sizes of dimensions at many points, ``int64[points]`` each.

    Attributes:
        known: cache of results that depend on these sizes and on a graph only, for reuse with
            several devices.
    """

    def __init__(self, sizes: Mapping[str, Ints]) -> None:
        super().__init__(sizes)
        self.known: dict[object, Any] = {}


def dims_of(op: Op) -> frozenset[str]:
    """Return the dimensions on which the sizes of a call and of all ops below it depend."""
    names: set[str] = set()
    for inner in op.walk():
        for value in (*inner.operands, *inner.results, *inner.attributes.values()):
            _collect_dims(value, names)
    return frozenset(names)


def _collect_dims(value: Value, names: set[str]) -> None:
    if isinstance(value, Tensor):
        for size in (*value.shape, *(value.strides or ()), value.offset):
            _collect_dims(size, names)
    elif isinstance(value, tuple):
        for item in value:
            _collect_dims(item, names)
    elif isinstance(value, Dim):
        names.update(name for factors, _ in value.terms for name in factors)


def evaluate_size(size: int, dims: Mapping[str, int]) -> int:
    """Return the value of a size whose dimensions are numbers at many points."""
    return evaluate(size.terms, dims) if isinstance(size, Dim) else size
