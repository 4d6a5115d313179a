"""Runs two graphs on the same small drawn values, and compares their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph

Torch = Any
"""A tensor of torch's."""

EXACT = 1e-7
"""Maximum difference of equal results in f64, relative to the largest element: sums are in another
order, and the values have many magnitudes."""

F32 = 1e-4
"""Maximum difference of equal results in f32, if torch has no kernels for f64."""


class UncomparableError(Exception):
    """The ops cannot be run at small sizes; the message is the reason."""


class DrawnPair(Struct, frozen=True):
    """The old and the new ops as graphs that start from the same values.

    Attributes:
        joint: a graph with all ops, which determine the values that are allowed.
        old: the graph of the old ops.
        new: the graph of the new ops.
        results: names of results of the old ops, with those of the new ops that must be equal.
    """

    joint: Graph
    old: Graph
    new: Graph
    results: tuple[tuple[str, str], ...]

    def difference(self, tolerance: float) -> tuple[str, str]:
        """Return the first result that differs, and by how much; empty if none does."""
        from irgraph.execute.widen import widen_together

        if tolerance:
            return self._difference(tolerance)
        joint, old, new = widen_together((self.joint, self.old, self.new), "f64")
        wide = DrawnPair(joint, old, new, self.results)
        try:
            return wide._difference(EXACT)
        except UncomparableError:
            return self._difference(F32)

    def _difference(self, tolerance: float) -> tuple[str, str]:
        from irgraph.execute.random_values import TAME
        from irgraph.execute.trials import MANNERS

        compared = False
        for seed, manner in enumerate((*MANNERS, TAME)):
            try:
                old = self._run(self.old, seed, manner)
            except UncomparableError:
                if seed == 0:
                    raise
                continue  # the old ops take no such values
            new = self._run(self.new, seed, manner)
            for name, other in (*self.results, *self._written()):
                text, finite = _value_difference(old[name], new[other], tolerance)
                if text:
                    return name, text
                compared |= finite
        if not compared:
            raise UncomparableError("no drawn value gives a finite result")
        return "", ""

    def _written(self) -> list[tuple[str, str]]:
        """Return the tensors that either graph writes, each with itself."""
        buffers = {
            tensor.buffer
            for graph in (self.old, self.new)
            for leaf in graph.leaves()
            for tensor in leaf.inputs
            if tensor.name in leaf.written
        }
        return [(d.tensor.name,) * 2 for d in self.joint.tensors if d.tensor.buffer in buffers]

    def _run(self, graph: Graph, seed: int, manner: str) -> Mapping[str, Torch]:
        from irgraph.execute.machine import Machine, precision, without_autograd
        from irgraph.execute.random_values import Drawer

        try:
            with without_autograd(precision(self.joint)):
                machine = Machine(graph, {}, Drawer(self.joint, seed, manner))
                machine.run()
        except (IrgraphError, RuntimeError) as error:
            reason = error.diagnostics[0].message if isinstance(error, IrgraphError) else str(error)
            raise UncomparableError(reason) from None
        return machine.values


def _value_difference(old: Torch, new: Torch, tolerance: float) -> tuple[str, bool]:
    """Return how a value differs from another, and whether it has finite elements."""
    import torch

    old, new = (value.to_dense() if value.is_sparse else value for value in (old, new))
    if old.shape != new.shape:
        return f"is {list(new.shape)}, not {list(old.shape)}", True
    if not old.is_floating_point() and not old.is_complex():
        count = int((old != new).sum())
        return (f"differs in {count} of {old.numel()} elements" if count else ""), True
    finite = old.isfinite()
    if not torch.equal(finite, new.isfinite()) or not torch.equal(
        old[~finite].nan_to_num(), new[~finite].nan_to_num()
    ):
        return "has infinite or undefined elements elsewhere", True
    if not bool(finite.any()):
        return "", False
    first, second = old[finite].to(torch.float64), new[finite].to(torch.float64)
    largest = float(first.abs().max())
    off = float((first - second).abs().max())
    if off > tolerance * max(largest, 1e-30):
        return f"is off by {off:.2g}, its largest element is {largest:.2g}", True
    return "", True
