"""Propagation of places through a step: a pass in launch order, and a second one if it pays."""

from __future__ import annotations

from dataclasses import replace

from irgraph.ir.graph import Graph
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.choices.choice import Chooser
from irgraph.verbs.sharding.choices.lookahead import Lookahead
from irgraph.verbs.sharding.embeddings.lookups import Lookups
from irgraph.verbs.sharding.fixed_places import FixedPlaces
from irgraph.verbs.sharding.rank_ops import RankOps
from irgraph.verbs.sharding.writer import GROUP


def is_better(second: Chooser, first: Chooser) -> bool:
    """Return whether a pass moves less than another, and ranks work no more.

    Then it is better on every machine, at any ratio of its links to its memory.
    """
    is_worse = second.work > first.work or second.transfers.exposed > first.transfers.exposed
    return not is_worse and second.transfers.time < first.transfers.time


def propagate(
    graph: Graph,
    layout: FixedPlaces,
    rank: int,
    group: str = GROUP,
    lookups: Lookups | None = None,
) -> tuple[RankOps, Graph]:
    """Return the ops of one rank, and its model.

    The second pass knows the needs of later calls. It is tried if activations are gathered or
    exchanged by the first, and used if it is better.

    Args:
        graph: the whole step.
        layout: the places that the plan fixes.
        rank: index of the rank, from 0.
        group: the process group of the ranks.
        lookups: the lookups of tables.

    Raises:
        RefusedError: an op can run neither on parts nor on tensors assembled from parts.
    """
    lookups = lookups or Lookups()
    first = RankOps(graph, layout, rank, group, lookups)
    model = first.build_graph()
    chooser = first.chooser
    if not chooser.exposed and not first.tensors.counts["exchange"]:
        return first, model
    future = Lookahead(chooser.decisions, layout.ranks, chooser.origins)
    second = RankOps(graph, layout, rank, group, replace(lookups, gradients={}), future)
    try:
        other_model = second.build_graph()
    except RefusedError:
        return first, model
    return (second, other_model) if is_better(second.chooser, chooser) else (first, model)
