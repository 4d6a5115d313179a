"""Types of what is measured, and the call of a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from costmodels.measure.bench import Array, Bench

Call: TypeAlias = Callable[[], object]
"""What is timed: no arguments, and everything it needs already on the device."""

Maker: TypeAlias = Callable[[Bench], Call]
"""Prepares a case."""

Function: TypeAlias = Callable[[Any, Array], Any]
"""An op of one tensor: torch (the module) and the tensor in, the result out."""


def gradient(bench: Bench, result: Array, *sources: Array) -> Call:
    """Return the call of a result's gradient with respect to its sources."""
    given = bench.torch.ones_like(result)
    return lambda: bench.torch.autograd.grad(result, sources, given, retain_graph=True)
