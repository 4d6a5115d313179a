"""Runs two graphs on the same small drawn values, and compares their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from irgraph.diagnostics import IrgraphError, fail
from irgraph.ir.graph import Graph

if TYPE_CHECKING:
    from irgraph.execute.comparison import Trial
    from irgraph.execute.records import Result
    from irgraph.execute.trials import Draw

Torch = Any
"""A tensor of torch's."""

ROUNDINGS = {"f64": 1e-12, "f32": 1e-4}
"""Types that replace shorter floating types, and the largest difference of equal results in each,
relative to a tensor's largest element: sums of many elements may be in another order. In f64 it is
the rounding of an element times the square root of 2e7 elements. The first type for which torch has
all kernels applies."""

ROUNDS = 2
"""Number of draws in each manner: tensors have few elements."""


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
        """Return the first result that differs, and by how much; empty if none does.

        ``tolerance`` allows ops to round inside; they then run in their own types.
        """
        from irgraph.execute.widen import widen_together

        if tolerance:
            return self._difference(tolerance)
        for width, rounding in ROUNDINGS.items():
            joint, old, new = widen_together((self.joint, self.old, self.new), width)
            try:
                return DrawnPair(joint, old, new, self.results)._difference(rounding)
            except UncomparableError:
                if width == "f32":
                    raise
        raise AssertionError("no width is tried")

    def _difference(self, tolerance: float) -> tuple[str, str]:
        from irgraph.execute.coverage import Observer
        from irgraph.execute.trials import MANNERS, Draws

        trials: list[Trial] = []

        def start(draw: Draw) -> tuple[Trial, list[str]]:
            trials.append(self._trial(draw, tolerance))
            return trials[-1], []

        try:
            draws = Draws(ROUNDS * len(MANNERS), 0, wide=True)
            result = draws.compare(start, Observer(self.old))
        except (IrgraphError, RuntimeError) as error:
            raise UncomparableError(_reason(error)) from None
        names = [tensor.name for tensor in result.compared]
        if not any(_has_finite(trial.first, names) for trial in trials):
            raise UncomparableError("no drawn value gives a finite result")
        if result.same:
            return "", ""
        name = result.different[0].name
        second = trials[-1].second[dict(self.results).get(name, name)]
        return name, _difference_text(trials[-1].first[name], second)

    def _trial(self, draw: Draw, tolerance: float) -> Trial:
        """Run the old ops on a draw."""
        from irgraph.execute.comparison import Trial

        results = (
            tuple(graph.by_name[pair[side]] for pair in self.results)
            for side, graph in enumerate((self.old, self.new))
        )
        old, new = (
            replace(graph, returned=tensors)
            for graph, tensors in zip((self.old, self.new), results, strict=True)
        )
        first, manner = draw.run_first(old, lambda manner: self._run(old, draw.seed, manner))
        return Trial(old, new, first, draw.seed, 1, manner, old, tolerance=tolerance, shares=False)

    def _run(self, graph: Graph, seed: int, manner: str) -> Result:
        """Run a graph on values that both allow."""
        from irgraph.execute.machine import Machine, precision, run, without_autograd
        from irgraph.execute.random_values import Drawer

        try:
            with without_autograd(precision(self.joint)):
                values = Machine(self.joint, {}, Drawer(self.joint, seed, manner)).initial
            return run(graph, values, seed, manner=manner)
        except RuntimeError as error:
            raise fail(str(error)) from None


def _reason(error: Exception) -> str:
    return error.diagnostics[0].message if isinstance(error, IrgraphError) else str(error)


def _has_finite(result: Result, names: list[str]) -> bool:
    """Return whether a result has finite or integer elements."""
    values = (result[name] for name in names)
    dense = (value.to_dense() if value.is_sparse else value for value in values)
    return any(not value.numel() or bool(value.isfinite().any()) for value in dense)


def _difference_text(old: Torch, new: Torch) -> str:
    """Return by how much a value differs from another."""
    old, new = (value.to_dense() if value.is_sparse else value for value in (old, new))
    if old.shape != new.shape:
        return f"is {list(new.shape)}, not {list(old.shape)}"
    if not old.is_floating_point() and not old.is_complex():
        return f"differs in {int((old != new).sum())} of {old.numel()} elements"
    finite = old.isfinite() & new.isfinite()
    if not finite.equal(old.isfinite()) or not finite.equal(new.isfinite()):
        return "has infinite or undefined elements elsewhere"
    if not bool(finite.any()) or not old[~finite].nan_to_num().equal(new[~finite].nan_to_num()):
        return "has other infinite or undefined elements"
    off = float((old - new)[finite].abs().max())
    largest = float(old[finite].abs().max())
    return f"is off by {off:.2g}, its largest element is {largest:.2g}"
