"""Two graphs on the same values: what leaves the step in both, and by how much it differs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from irgraph.execute.callables import is_label
from irgraph.execute.leaving import leaving
from irgraph.execute.machine import run
from irgraph.execute.records import DECLARED, Compared, Comparison, Result
from irgraph.execute.torch_values import DTYPES, Torch
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.text.diagnostics import Diagnostic, Place, fail

TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "tf32": 1e-2, "f16": 1e-2, "bf16": 5e-2,
             "f8e4m3": 0.25, "f8e5m2": 0.5}  # fmt: skip
"""Difference that counts as the same, over the largest change that a step makes to a tensor."""

ROUNDING = 4
"""Units in the last place of the largest value that are allowed besides."""

TELLING = 10
"""A change must be so many times what is allowed for the comparison to say much."""


def compare(before: Graph, after: Graph, seed: int, notes: Sequence[str]) -> Comparison:
    """Run two graphs; ``irgraph.execute.compare`` says what is compared and raised."""
    _check_starts(before, after)
    first = run(before, {}, seed)
    known = {name: value for name, value in first.initial.items() if name in after.by_name}
    second = run(after, known, seed)
    kinds, others = leaving(before), leaving(after)
    exact = _only_moved(before, after)
    precision = _precision(before, after)
    labels = {declared.tensor.name: declared.label for declared in before.tensors}
    written = _written(before) | _written(after)
    compared = []
    for name, kind in kinds.items():
        if name in second.values and not (kind in DECLARED and name not in written):
            pair = _Pair(before.by_name[name], kind, labels.get(name, ""), first, second)
            compared.append(pair.compared(0.0 if exact else precision[1]))
    return Comparison(
        compared,
        [(kind, name) for name, kind in kinds.items() if name not in second.values],
        [(kind, name) for name, kind in others.items() if name not in first.values],
        exact,
        precision,
        (*notes, f"seed {seed}"),
    )


def _check_starts(before: Graph, after: Graph) -> None:
    """Refuse graphs that start from tensors of one name and different types."""
    types = {d.tensor.name: (d.tensor.dtype, d.tensor.shape) for d in before.tensors}
    for declared in after.tensors:
        tensor = declared.tensor
        if types.get(tensor.name, tensor.shape[:0]) not in ((), (tensor.dtype, tensor.shape)):
            source = before.by_name[tensor.name]
            raise fail(
                f"%{tensor.name} is {_type(source)} in one model and {_type(tensor)} in the other",
                Place(after.source or after.name),
                notes=[Diagnostic("the other model", Place(before.source or before.name),
                                  severity="note")],
                hint="graphs are compared at the same sizes: --dim gives a dimension its size",
            )  # fmt: skip


def _type(tensor: Tensor) -> str:
    return f"{tensor.dtype}{list(map(int, tensor.shape))}"


def _only_moved(before: Graph, after: Graph) -> bool:
    """Tell whether every op of the second graph is one of the first: nothing new is computed."""
    return _signatures(after) <= _signatures(before)


def _signatures(graph: Graph) -> Counter[str]:
    return Counter(repr(list(_signature(op))) for op in graph.leaves() if not is_label(op))


def _signature(op: Op) -> Iterator[object]:
    yield op.name
    yield [_shape(value) for value in op.operands]
    yield sorted((name, _shape(value)) for name, value in op.attributes.items())


def _shape(value: Value) -> str:
    if isinstance(value, Tensor):
        return _type(value)
    if isinstance(value, tuple):
        return str([_shape(item) for item in value])
    return repr(value)


def _precision(before: Graph, after: Graph) -> tuple[str, float]:
    """Return the coarsest element type that either graph computes with, and its tolerance."""
    used = {t.dtype for graph in (before, after) for t in graph.by_name.values()}
    coarsest = max(used & TOLERANCE.keys(), key=TOLERANCE.__getitem__, default="f64")
    return coarsest, TOLERANCE[coarsest]


def _written(graph: Graph) -> set[str]:
    """Return the declared tensors whose bytes ops may write, by their buffers."""
    buffers = {
        tensor.buffer for op in graph.leaves() for tensor in op.inputs if tensor.name in op.written
    }
    return {d.tensor.name for d in graph.tensors if d.tensor.buffer in buffers}


class _Pair:
    """One tensor as both graphs left it."""

    def __init__(self, tensor: Tensor, kind: str, label: str, a: Result, b: Result) -> None:
        self.tensor, self.kind, self.label = tensor, kind, label
        self.values = [_plain(a[tensor.name]), _plain(b[tensor.name])]
        start = a.initial.get(tensor.name) if kind in DECLARED else None
        self.start = None if start is None else _floating(_plain(start))

    def compared(self, tolerance: float) -> Compared:
        """Return the figures; without tolerance, and for integers, only equality counts."""
        about = (self.tensor.name, self.kind, self.label, _type(self.tensor))
        first, second = self.values
        if first.shape != second.shape or first.dtype != second.dtype:
            sizes = f"{list(first.shape)} and {list(second.shape)}"
            return Compared(*about, problem=f"its type differs: {sizes}")
        if not first.numel():
            return Compared(*about, changed=False)
        if not _finite(first) or not _finite(second):
            return self._unusual(about)
        size = _largest(first)
        change = _largest(first - self.start) if self.start is not None else size
        worst = 0.0 if torch.equal(first, second) else _largest(_wide(first) - _wide(second))
        exact = not tolerance or not (first.is_floating_point() or first.is_complex())
        allowed = 0.0 if exact else tolerance * change + ROUNDING * self._step() * size
        relative = worst / change if change else float("inf") if worst else 0.0
        return Compared(*about, worst, relative, allowed, change > TELLING * allowed)

    def _unusual(self, about: tuple[str, str, str, str]) -> Compared:
        """Compare tensors with nan or infinity: they must have the same, at the same places."""
        first, second = self.values
        if torch.equal(first.nan_to_num(), second.nan_to_num()):
            return Compared(*about)
        return Compared(*about, problem="it holds nan or infinity, and is not equal")

    def _step(self) -> float:
        return float(torch.finfo(DTYPES[self.tensor.dtype]).eps)


def _plain(value: Torch) -> Torch:
    return value.to_dense() if value.layout != torch.strided else value


def _floating(value: Torch) -> Torch:
    known = (value.is_floating_point() or value.is_complex()) and value.element_size() > 1
    return value if known else value.to(torch.float64)


def _wide(value: Torch) -> Torch:
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def _largest(value: Torch) -> float:
    return float(torch.linalg.vector_norm(_floating(value), float("inf")))


def _finite(value: Torch) -> bool:
    return math.isfinite(_largest(value))
