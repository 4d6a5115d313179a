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
        elementwise: whether each element is compared by its own rounding, instead of by the
            tensor's change.
    """

    tolerance: float
    gradient: float = 0.0
    coarse: bool = False
    elementwise: bool = False

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

    def compare(self, measure: Measure, scatter: Torch = 0.0) -> Compared:
        """Return the comparison.

        ``scatter`` is the deviation that roundings may cause: of the tensor, or of each element
        (infinite for elements that roundings make nan or infinite).
        """
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
            unstable = torch.as_tensor(scatter).isinf().broadcast_to(first.shape)
            if not _same_nonfinite(first.where(~unstable, 0), second.where(~unstable, 0)):
                return Compared(
                    *description, problem="it holds nan or infinity, and not at the same places"
                )
            finite = first.isfinite() & second.isfinite()
            first, second = first.where(finite, 0), second.where(finite, 0)
            start = start if start is None else start.where(finite, 0)
            equal = torch.equal(first, second)
        change = measure.norm(first if start is None else to_floating(first) - start)
        if equal and not math.isfinite(change):
            return Compared(*description)
        rounding = self._rounding(measure, first)
        changed = change > MIN_CHANGE_FACTOR * rounding
        difference = 0.0 if equal else measure.norm(_to_widest(first) - _to_widest(second))
        relative = difference / change if change else math.inf if difference else 0.0
        if measure.elementwise and not equal:
            difference, allowed = self._worst_element(first, second, scatter)
        else:
            limit = measure.tolerance * change + rounding + float(torch.as_tensor(scatter).max())
            allowed = limit if measure.tolerance and _is_continuous(first) else 0.0
        return Compared(*description, difference, relative, allowed, changed)

    def _worst_element(self, first: Torch, second: Torch, scatter: Torch) -> tuple[float, float]:
        """Return the difference and the tolerance of the element that exceeds its own most."""
        difference = (_to_widest(first) - _to_widest(second)).abs()
        allowed = torch.as_tensor(scatter, dtype=torch.float64).broadcast_to(first.shape)
        if _is_continuous(first):
            magnitude = _to_widest(first).abs()
            if self.start is not None:
                magnitude = torch.maximum(magnitude, _to_widest(self.start).abs())
            magnitude = magnitude.nan_to_num(posinf=0.0)
            unit = float(torch.finfo(first.dtype).eps)
            # a sum may have larger terms that cancel exactly, in perturbed runs as well
            allowed = allowed + unit * (ROUNDING_UNITS * magnitude + magnitude.max())
            allowed = allowed + torch.finfo(first.dtype).tiny  # of results that underflow
        excess = (difference / allowed).nan_to_num(nan=0.0, posinf=torch.inf)  # 0 of 0: equal
        index = int(excess.argmax())
        return float(difference.flatten()[index]), float(allowed.flatten()[index])

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
