"""Scatter of a step's results by roundings in short types: Monte Carlo arithmetic.

A rounding to nearest changes a value by at most the type's unit roundoff, relative to the value
(Higham, Accuracy and Stability of Numerical Algorithms, 2.1). The graph runs in f32, and every
result in a short type and every factor that products round to tf32 is changed by a random fraction
of that size. The distance of several such runs from the run without changes is the effect of
roundings on each tensor, including all that depends on it (Parker, Monte Carlo Arithmetic, UCLA
CSD-970002, 1997).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from irgraph.execute.ranks.replicas import run_replicas
from irgraph.execute.torch_values import Torch
from irgraph.execute.widen import SHORT, short_types, widen_types, with_explicit_tf32
from irgraph.ir.dtypes import DIGITS
from irgraph.ir.effects import is_view, written_by
from irgraph.ir.graph import Graph
from irgraph.ir.narrow.layers import short_layer_tensors
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

UNIT_ROUNDOFF = {name: 2.0 ** -DIGITS[name] for name in SHORT}
"""Unit roundoff: half the distance from 1 to the next number."""

SUBNORMAL = {"f16": 2**-25, "f8e4m3": 2**-10, "f8e5m2": 2**-17}
"""Half the distance of the smallest numbers, for types in which it is relevant next to f32."""

DRAWS = 8
"""Number of runs with random roundings."""

MAX_SCATTER_FACTOR = 10.0
"""Maximum deviation of one more draw, as a multiple of the scatter of 8 draws: Student's t with 8
degrees of freedom exceeds it once in 100,000."""


def scatter(
    graph: Graph,
    inputs: Mapping[str, Any],
    seed: int,
    ranks: int,
    names: Iterable[str],
    norm: Callable[[Torch], float],
) -> dict[str, float]:
    """Return the norm of the scatter of tensors by roundings in short types, by name."""
    if not short_types(graph):
        return {}
    expanded = with_explicit_tf32(graph)
    layer_tensors = short_layer_tensors(graph)
    dtype_by_name = {t.name: t.dtype for t in expanded.by_name.values() if t.dtype in UNIT_ROUNDOFF}
    types = {name: kind for name, kind in dtype_by_name.items() if name not in layer_tensors}
    wide = widen_types(expanded)
    reference = run_replicas(wide, inputs, seed, ranks)
    selected = [name for name in names if name in reference.values]
    squares = dict.fromkeys(selected, 0.0)
    for draw in range(DRAWS):
        rounded = run_replicas(wide, inputs, seed, ranks, _Rounding(types, seed * DRAWS + draw))
        for name in selected:
            squares[name] += norm(_dense(rounded[name]) - _dense(reference[name])) ** 2
    return {name: math.sqrt(square / DRAWS) for name, square in squares.items()}


class _Rounding:
    """Changes results like random roundings to their types."""

    def __init__(self, types: Mapping[str, str], seed: int) -> None:
        self.types = types
        self.source = torch.Generator().manual_seed(seed)

    def __call__(self, op: Op, values: Mapping[str, Torch]) -> None:
        if is_view(op):
            return
        for tensor in (*op.outputs, *written_by(op)):
            self._round(tensor, values[tensor.name])

    def _round(self, tensor: Tensor, value: Torch) -> None:
        stored = value if value.layout == torch.strided else value._values()
        kind = self.types.get(tensor.name)
        if kind is None or not stored.is_floating_point():
            return
        shape = stored.shape
        share, step = (2 * torch.rand(shape, generator=self.source) - 1 for _ in range(2))
        stored.mul_(1 + UNIT_ROUNDOFF[kind] * share).add_(SUBNORMAL.get(kind, 0.0) * step)


def _dense(value: Torch) -> Torch:
    dense = value.to_dense() if value.layout != torch.strided else value
    return dense.to(torch.float64)
