"""Compares the values of one tensor after two executions."""

from __future__ import annotations

import math

import torch
from msgspec import Struct

from irgraph.execute.bounds import check_sparse
from irgraph.execute.records import DECLARED, Compared, Result
from irgraph.execute.torch_values import Torch
from irgraph.ir.tensor import Tensor

ROUNDING_UNITS = 4
"""Additional tolerance in units in the last place of the largest value."""

MIN_CHANGE_FACTOR = 10
"""Minimum ratio of a change to that rounding for the comparison to be significant."""


class Measure(Struct, frozen=True):
    """Criterion of equality.

    Attributes:
        tolerance: tolerance relative to a tensor's change; 0 requires equality.
        gradient: the largest element of all gradients, whose last place is the tolerance of
            gradients that consist only of rounding errors.
        coarse: whether root mean squares are compared instead of largest elements: a rounding that
            changes the sign of one activation changes single elements of gradients completely.
    """

    tolerance: float
    gradient: float = 0.0
    coarse: bool = False

    def norm(self, value: Torch) -> float:
        """Return the size of a tensor: its largest element, or its root mean square."""
        root = math.sqrt(value.numel()) if self.coarse else 1.0
        order = 2.0 if self.coarse else math.inf
        return float(torch.linalg.vector_norm(to_floating(value), order)) / root


class TensorPair:
    """One tensor after both executions; ``other`` is its name in the second graph."""

    def __init__(
        self, tensor: Tensor, other: str, kind: str, label: str, a: Result, b: Result
    ) -> None:
        self.tensor, self.kind, self.label = tensor, kind, label
        self.values = [to_dense(a[tensor.name]), to_dense(b[other])]
        start = a.initial.get(tensor.name) if kind in DECLARED else None
        self.start = None if start is None else to_floating(to_dense(start))

    def compare(self, measure: Measure, scatter: float = 0.0) -> Compared:
        """Return the comparison; integers must be equal, others may also differ by ``scatter``."""
        shape = list(map(int, self.tensor.shape))
        description = (self.tensor.name, self.kind, self.label, f"{self.tensor.dtype}{shape}")
        first, second = self.values
        if first.shape != second.shape or first.dtype != second.dtype:
            sizes = f"{list(first.shape)} and {list(second.shape)}"
            return Compared(*description, problem=f"its type differs: {sizes}")
        if not first.numel():
            return Compared(*description, changed=False)
        start = self.start
        equal = torch.equal(first, second)  # never where there is nan
        if not equal and not (
            math.isfinite(max_magnitude(first)) and math.isfinite(max_magnitude(second))
        ):
            if not _same_nonfinite(first, second):
                return Compared(
                    *description, problem="it holds nan or infinity, and not at the same places"
                )
            finite = first.isfinite()
            first, second = first.where(finite, 0), second.where(finite, 0)
            start = start if start is None else start.where(finite, 0)
            equal = torch.equal(first, second)
        change = measure.norm(first if start is None else to_floating(first) - start)
        if equal and not math.isfinite(change):
            return Compared(*description)
        difference = 0.0 if equal else measure.norm(_to_widest(first) - _to_widest(second))
        relative = difference / change if change else math.inf if difference else 0.0
        rounding = self._rounding(measure, first)
        allowed = measure.tolerance * change + rounding + scatter if measure.tolerance else 0.0
        if not _is_continuous(first):
            allowed = 0.0
        return Compared(
            *description, difference, relative, allowed, change > MIN_CHANGE_FACTOR * rounding
        )

    def _rounding(self, measure: Measure, value: Torch) -> float:
        """Return the largest change that rounding alone may cause."""
        if not _is_continuous(value):
            return 0.0
        scale = max_magnitude(value)
        if self.kind == "gradient":
            scale = max(scale, measure.gradient)
        return ROUNDING_UNITS * float(torch.finfo(value.dtype).eps) * scale


def _same_nonfinite(first: Torch, second: Torch) -> bool:
    """Return whether two tensors have nan and infinities at the same positions."""
    return all(
        torch.equal(test(first), test(second))
        for test in (torch.isnan, _is_plus_infinity, _is_minus_infinity)
    )


def _is_plus_infinity(value: Torch) -> Torch:
    return value == math.inf


def _is_minus_infinity(value: Torch) -> Torch:
    return value == -math.inf


def to_dense(value: Torch) -> Torch:
    """Return a dense tensor; raise ``ValueError`` if an index is out of bounds."""
    check_sparse([value])
    return value.to_dense() if value.layout != torch.strided else value


def to_floating(value: Torch) -> Torch:
    """Return a tensor in a type for which torch computes norms."""
    return value if _is_continuous(value) and value.element_size() > 1 else value.to(torch.float64)


def max_magnitude(value: Torch) -> float:
    """Return the largest absolute value, 0 for an empty tensor, nan if there is any."""
    if not value.numel():
        return 0.0
    return float(torch.linalg.vector_norm(to_floating(value), math.inf))


def _is_continuous(value: Torch) -> bool:
    return bool(value.is_floating_point() or value.is_complex())


def _to_widest(value: Torch) -> Torch:
    return value.to(torch.complex128 if value.is_complex() else torch.float64)
