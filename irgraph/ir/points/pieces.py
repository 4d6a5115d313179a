"""Prices of calls at many sizes at once: what cost models hand to the prediction of variants."""

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
    """The work of one call at those points at which it has the same kernels.

    Attributes:
        points: places of these points, ``int64[points]``.
        kernels: by place among the call and all below it, outer before inner: the work of each op
            that a cost model knows; its times are those of the first point.
        unknown: places of leaves that no cost model knows.
        times: microseconds of all kernels in order, ``float64[kernels, points]``.
        spreads: half a 90 % interval of each, ``float64[kernels, points]``.
    """

    points: Ints
    kernels: Mapping[int, tuple[Kernel, ...]]
    unknown: tuple[int, ...]
    times: Floats
    spreads: Floats

    @property
    def structure(self) -> object:
        """What a schedule depends on beside times."""
        kinds = tuple(
            (position, tuple((k.launch, k.blocking, k.family, k.group) for k in ks))
            for position, ks in self.kernels.items()
        )
        return kinds, self.unknown


class Sizes(dict[str, Ints]):
    """Sizes of dimensions at many points, ``int64[points]`` each.

    Attributes:
        known: what follows from them and from a graph alone, to be asked for again: for each of
            several devices.
    """

    def __init__(self, sizes: Mapping[str, Ints]) -> None:
        super().__init__(sizes)
        self.known: dict[object, Any] = {}


def dims_of(op: Op) -> frozenset[str]:
    """Return the dimensions that the sizes of a call, and of all below it, depend on."""
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
    """Return the value of an expression whose dimensions are numbers at many points."""
    return evaluate(size.terms, dims) if isinstance(size, Dim) else size
