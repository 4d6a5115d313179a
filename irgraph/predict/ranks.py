"""Models of several ranks, predicted together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from irgraph.diagnostics import fail
from irgraph.ir.graph import Graph
from irgraph.ir.ranks import groups_at, layout_of
from irgraph.predict.options import PredictFields, PredictOptions, predict_options
from irgraph.predict.prediction import Prediction, predict
from irgraph.schedule.ranks import Ranks, simulate_ranks
from irgraph.schedule.sampling import sample_steps
from irgraph.schedule.tasks import Floats


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
    timelines, groups = [prediction.timeline for prediction in found], rank_groups(graphs)
    return simulate_ranks(timelines, starts=starts, groups=groups)


def rank_samples(found: Ranks, predictions: Sequence[Prediction]) -> Floats:
    """Return steps of all ranks under random draws, microseconds, ``float64[draws]``.

    Errors of a family of kernels, and what a host is slower as a whole, are common to all ranks;
    occurrences of a host's calls vary on each rank alone (``schedule.sampling``).
    """
    return sample_steps(found.timeline, predictions[0].host)


def rank_groups(graphs: Sequence[Graph]) -> list[dict[str, tuple[int, ...]]]:
    """Return each rank's process groups, by what its model says.

    Raises ``IrgraphError`` where a group has ranks that no model is given for.
    """
    found = [groups_at(graph, rank) for rank, graph in enumerate(graphs)]
    highest = max((rank for each in found for ranks in each.values() for rank in ranks), default=0)
    if highest >= len(graphs):
        message = f"there are {len(graphs)} models, and a process group has rank {highest}"
        raise fail(message, hint="give a model for each rank, in order; equal ones may be repeated")
    return found


def each_rank(graphs: Sequence[Graph], options: PredictOptions) -> list[Prediction]:
    """Return the prediction of each rank alone; ranks with the same model share one."""
    found: dict[int, Prediction] = {}
    for graph in graphs:
        if id(graph) not in found:
            known = options.ranks is not None or layout_of(graph).ranks
            changes: PredictFields = {} if known else {"ranks": len(graphs)}
            found[id(graph)] = predict(graph, options, **changes)
    return [found[id(graph)] for graph in graphs]
