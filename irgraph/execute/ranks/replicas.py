"""Runs one model on several ranks in this process, each with its own inputs.

All ranks run the same ops. Parameters and state start equal, inputs and random numbers differ, so
that a missing, early or repeated exchange changes results. Values of all ranks are stacked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from msgspec.structs import replace

from irgraph.diagnostics import SourceSpan, fail
from irgraph.execute.machine import Inspect, Machine, Watch, precision, run, without_autograd
from irgraph.execute.random_values import TAME, Drawer
from irgraph.execute.ranks.collectives import computations
from irgraph.execute.ranks.runner import run_ranks
from irgraph.execute.records import Result
from irgraph.ir.graph import Graph
from irgraph.ir.ranks import GROUPS, layout_of, ranks_of
from irgraph.ops.live_out import live_out

WORLD_SIZES = (2, 4)
"""Numbers of ranks, in turn, of models whose collectives do not specify it."""

MAX_RANKS = 8
"""Maximum number of ranks that a model's setting may demand; if it has more, fewer are run."""

RANK_SEED = 7_368_787
"""Distance of the seeds of two ranks."""


def needs_ranks(graph: Graph) -> bool:
    """Return whether a graph has collectives that are computed from the values of all ranks."""
    return any(op.name in computations() for op in graph.leaves())


def world_size(graph: Graph, number: int) -> int:
    """Return the number of ranks on which a model runs in a draw.

    Raises:
        IrgraphError: the collectives are of groups of different sizes.
    """
    sizes = {ranks_of(op) for op in graph.leaves() if op.name in computations()} - {0}
    if len(sizes) > 1:
        counts = " and ".join(map(str, sorted(sizes)))
        message = f"collectives of {counts} ranks cannot be computed from one rank's model"
        hint = "check the step with the models of all ranks"
        raise fail(message, SourceSpan(graph.source or graph.name), hint=hint)
    if sizes:
        return sizes.pop()
    ranks = layout_of(graph).ranks
    return ranks if 0 < ranks <= MAX_RANKS else WORLD_SIZES[number % len(WORLD_SIZES)]


def run_replicas(
    graph: Graph,
    inputs: Mapping[str, Any],
    seed: int,
    ranks: int = 1,
    watch: Watch | None = None,
    manner: str = TAME,
    inspect: Inspect | None = None,
    *,
    equal: bool = False,
) -> Result:
    """Run a graph on one rank, or on several with different inputs; return stacked values.

    If ``equal``, the ranks have equal inputs and random numbers.

    ``inputs`` are stacked, too. See ``irgraph.execute.execute`` for the errors.
    """
    if ranks == 1:
        return run(graph, inputs, seed, watch, manner, inspect)
    model = replace(graph, settings={k: v for k, v in graph.settings.items() if k != GROUPS})
    seeds = [seed + (0 if equal else RANK_SEED * rank) for rank in range(ranks)]
    values = [{name: value[rank] for name, value in inputs.items()} for rank in range(ranks)]
    if not inputs:
        common = _common_values(model, seed, manner)
        values = [common] * ranks
    results = run_ranks([model] * ranks, values, seeds, manner, watch, inspect)
    reads = zip(*(result.read for result in results), strict=True)
    return Result(
        _stacked([result.values for result in results]),
        _stacked([result.initial for result in results]),
        [(group[0][0], torch.stack([value for _, value in group])) for group in reads],
    )


def average_gradients(graph: Graph, result: Result) -> Result:
    """Return stacked results with each gradient averaged over the ranks, and without reads."""
    values = dict(result.values)
    for name, kind in live_out(graph).items():
        if kind == "gradient" and name in values:
            values[name] = values[name].mean(0).expand_as(values[name])
    return Result(values, result.initial, ())


def _common_values(graph: Graph, seed: int, manner: str) -> dict[str, Any]:
    """Return the initial values that all ranks share: parameters and state."""
    with without_autograd(precision(graph)):
        machine = Machine(graph, {}, Drawer(graph, seed, manner), excluded=computations())
    common_names = (d.tensor.name for d in graph.tensors if d.role != "input")
    return {name: machine.initial[name] for name in common_names}


def _stacked(values: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        name: torch.stack([_dense(rank[name]) for rank in values])
        for name in values[0]
        if all(rank[name].shape == values[0][name].shape for rank in values)
    }


def _dense(value: Any) -> Any:  # noqa: ANN401  (a torch tensor)
    return value.to_dense() if value.layout != torch.strided else value
