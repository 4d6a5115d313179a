"""Models of several ranks, predicted together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from irgraph.diagnostics import fail
from irgraph.ir.graph import Graph
from irgraph.ir.ranks import groups_of, layout_of
from irgraph.predict.options import PredictFields, PredictOptions, predict_options
from irgraph.predict.prediction import Prediction, predict
from irgraph.schedule.ranks import Ranks, simulate_ranks


def predict_ranks(
    graphs: Sequence[Graph],
    options: PredictOptions | str | None = None,
    *,
    starts: Sequence[float] = (),
    **changes: Unpack[PredictFields],
) -> Ranks:
    """Predict a model for each rank and simulate them together; options as of ``predict``.

    A collective starts when the last rank arrives. All models' ranks take part in it, unless the
    options or a model say otherwise. ``starts`` are the times at which ranks begin, microseconds
    after the first.

    Raises ``IrgraphError`` where the ranks do not match, or a collective has no time.
    """
    found = each_rank(graphs, predict_options(options, **changes))
    return simulate_ranks([prediction.timeline for prediction in found], starts=starts)


def each_rank(graphs: Sequence[Graph], options: PredictOptions) -> list[Prediction]:
    """Return the prediction of each rank alone; ranks with the same model share one."""
    for graph in graphs:
        apart = [name for name, ranks in groups_of(graph).items() if len(ranks) < len(graphs)]
        if apart:
            message = f"{graph.name}: process groups of some of the ranks ({', '.join(apart)})"
            raise fail(message, hint="ranks are simulated together where all meet in collectives")
    found: dict[int, Prediction] = {}
    for graph in graphs:
        if id(graph) not in found:
            known = options.ranks is not None or layout_of(graph).ranks
            changes: PredictFields = {} if known else {"ranks": len(graphs)}
            found[id(graph)] = predict(graph, options, **changes)
    return [found[id(graph)] for graph in graphs]
