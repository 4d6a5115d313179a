"""Predicates of broken graphs beyond the verifier's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from irgraph.ir.graph import Graph
from irgraph.manage.bisect import Predicate

if TYPE_CHECKING:
    from irgraph.predict.options import PredictOptions


def exceeds_limits(limits: Sequence[str], options: PredictOptions | str = "v100") -> Predicate:
    """Return the predicate of predictions above limits such as ``step.time=9ms``.

    The prediction is by models alone, without measured times.
    """
    from irgraph.predict.limits import broken_limits
    from irgraph.predict.prediction import predict

    def broken(graph: Graph) -> str:
        summary = predict(graph, options, measured=False).summary()
        return "; ".join(broken_limits(list(limits), summary, None))

    return broken


def results_differ(graph: Graph) -> Predicate:
    """Return the predicate of graphs whose results differ from those of ``graph``, run with torch.

    It raises ``IrgraphError`` for a graph that cannot be run.
    """
    from irgraph.execute import compare

    def broken(other: Graph) -> str:
        if other is graph:
            return ""
        comparison = compare(graph, other)
        return "" if comparison.same else str(comparison)

    return broken
