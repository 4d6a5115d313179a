"""Models of several ranks, predicted together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from irgraph.diagnostics import argument_items, fail
from irgraph.ir.graph import Graph, check_graph
from irgraph.ir.ranks import groups_at, layout_of
from irgraph.predict.caveats import merge_percentages
from irgraph.predict.options import PredictFields, PredictOptions, predict_options
from irgraph.predict.prediction import Prediction, predict
from irgraph.schedule.ranks import Ranks, is_collective, is_timed, simulate_ranks
from irgraph.schedule.sampling import sample_steps
from irgraph.schedule.tasks import Floats

MEASURED_NOTE = (
    "measured collectives contain waiting: each takes its minimum over ranks; "
    "waiting common to all {count} ranks stays in it"
)


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
    graphs = argument_items("graphs", graphs, "graphs, one a rank")
    check_graph(*graphs)
    predictions = predict_each_rank(graphs, predict_options(options, **changes))
    timelines, groups = [prediction.timeline for prediction in predictions], rank_groups(graphs)
    return simulate_ranks(timelines, starts=starts, groups=groups)


def rank_samples(ranks: Ranks, predictions: Sequence[Prediction]) -> Floats:
    """Return steps of all ranks under random draws, microseconds, ``float64[draws]``.

    Errors of a family of kernels, and the error of a host's speed, are common to all ranks; single
    occurrences of a host's calls vary on each rank separately (``schedule.sampling``).
    """
    return sample_steps(ranks.timeline, predictions[0].host)


def rank_groups(graphs: Sequence[Graph]) -> list[dict[str, tuple[int, ...]]]:
    """Return each rank's process groups, as its model declares them.

    Raises ``IrgraphError`` if a group has a rank without a model.
    """
    groups_by_rank = [groups_at(graph, rank) for rank, graph in enumerate(graphs)]
    highest = max(
        (rank for groups in groups_by_rank for ranks in groups.values() for rank in ranks),
        default=0,
    )
    if highest >= len(graphs):
        message = f"there are {len(graphs)} models, and a process group has rank {highest}"
        raise fail(message, hint="give a model for each rank, in order; equal ones may be repeated")
    return groups_by_rank


def predict_each_rank(graphs: Sequence[Graph], options: PredictOptions) -> list[Prediction]:
    """Return the prediction of each rank alone; ranks with the same model share one."""
    predictions: list[Prediction] = []
    for rank, graph in enumerate(graphs):
        first = next(i for i, other in enumerate(graphs) if other is graph)
        if first < rank:
            predictions.append(predictions[first])
        else:
            has_ranks = options.ranks is not None or layout_of(graph).ranks
            changes: PredictFields = {} if has_ranks else {"ranks": len(graphs)}
            predictions.append(predict(graph, options, **changes))
    return predictions


def collective_notes(predictions: Sequence[Prediction]) -> list[str]:
    """Return the sources of the collectives' times, and warnings about them."""
    lines = dict.fromkeys(line for p in predictions for line in p.summary()["collectives"])
    timed = all(any(is_collective(k) and is_timed(k) for k in p.kernels()) for p in predictions)
    notes = [MEASURED_NOTE.format(count=len(predictions))] if timed else []
    warnings = merge_percentages(text for p in predictions for text in p.warnings)
    return [*lines, *notes, *(f"WARNING: {text}" for text in warnings)]
