"""Plans of a model, found by fast costs and simulated with all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct

from irgraph.diagnostics import fail
from irgraph.ir.graph import Graph
from irgraph.planning.costs import problem_of
from irgraph.planning.placement_costs import TableLayout, pack
from irgraph.planning.search import SECONDS, baselines, search
from irgraph.plans.plan import Plan
from irgraph.predict.figures import coverage
from irgraph.predict.options import PredictOptions
from irgraph.predict.prediction import Prediction
from irgraph.predict.ranks import predict_each_rank, rank_groups, rank_samples
from irgraph.schedule.ranks import Ranks, simulate_ranks
from irgraph.schedule.sampling import interval
from irgraph.verbs.sharding.shard import shard

SEARCH_PLAN, GREEDY_PLAN = "search", "longest first"
"""Names of the plan of the search, and of the greedy plan of unsplit tables, longest time first."""


class PlanResult(Struct, frozen=True, dict=True):
    """A plan and its simulation. Times in microseconds.

    Attributes:
        name: names of the methods that returned the plan.
        plan: the plan.
        models: models of all ranks.
        ranks: joint simulation of all ranks.
        cost: estimate of the search's fast model: only tables and their collectives.
        imbalance: time of tables' kernels on the slowest rank over the mean.
        memory: peak memory of each rank in bytes.
        predictions: separate prediction of each rank.
    """

    name: str
    plan: Plan
    models: tuple[Graph, ...]
    ranks: Ranks
    cost: float
    imbalance: float
    memory: tuple[int, ...]
    predictions: tuple[Prediction, ...] = ()

    @cached_property
    def interval(self) -> tuple[float, float]:
        """Ends of a 90 % interval of the step over all ranks."""
        return interval(rank_samples(self.ranks, self.predictions))

    @property
    def coverage(self) -> dict[str, float]:
        """Share of all ranks' device time by provenance."""
        return coverage(
            kernel for prediction in self.predictions for kernel in prediction.kernels()
        )

    @property
    def step_time(self) -> float:
        """Simulated time of the step over all ranks."""
        return self.ranks.step_time


def plans_of(
    graph: Graph,
    ranks: int,
    memory: float,
    options: PredictOptions,
    *,
    seed: int = 0,
    seconds: float = SECONDS,
    with_baselines: bool = True,
) -> list[PlanResult]:
    """Return the plans of the search and of greedy sharders, the fastest by simulation first.

    Args:
        graph: the unsharded step.
        ranks: number of ranks.
        memory: bytes of each rank's device.
        options: device, host and fabric, as for ``predict``.
        seed: seed of the random plan and of the search.
        seconds: time limit of the search.
        with_baselines: whether to simulate the plans of greedy sharders as well.

    Raises:
        IrgraphError: no plan fits into memory, or a collective has no time on the device.
        RefusedError: the step cannot be sharded.
    """
    problem = problem_of(graph, ranks, memory, options)
    layouts: dict[str, TableLayout | None] = {SEARCH_PLAN: search(problem, seed, seconds=seconds)}
    if with_baselines:
        layouts[GREEDY_PLAN] = pack(problem, [0] * len(problem.tables))
        layouts |= baselines(problem, seed)
    best_layout = layouts[SEARCH_PLAN]
    if best_layout is None:
        limit = f"{memory / 2**30:.1f} GiB on each of {ranks} ranks"
        raise fail(f"no plan fits into {limit}", hint="give more ranks, or more --memory")
    results = [
        _evaluate(graph, name, layout, options) for name, layout in _distinct_layouts(layouts)
    ]
    return sorted(
        (t for t in results if max(t.memory) <= memory), key=lambda result: result.step_time
    )


def _distinct_layouts(
    layouts: Mapping[str, TableLayout | None],
) -> Iterator[tuple[str, TableLayout]]:
    """Yield every distinct layout once, with the names of all methods that returned it."""
    names: dict[str, list[str]] = {}
    for name, layout in layouts.items():
        if layout is not None:
            names.setdefault(str(layout.plan()), []).append(name)
    for plan_names in names.values():
        layout = layouts[plan_names[0]]
        assert layout is not None
        yield ", ".join(plan_names), layout


def _evaluate(graph: Graph, name: str, layout: TableLayout, options: PredictOptions) -> PlanResult:
    plan = layout.plan()
    models = tuple(shard(graph, plan, rank).graph for rank in range(plan.ranks))
    predictions = predict_each_rank(models, options)
    timelines = [prediction.timeline for prediction in predictions]
    simulation = simulate_ranks(timelines, groups=rank_groups(models))
    mean = sum(layout.time) / len(layout.time)
    memory = tuple(prediction.memory.peak for prediction in predictions)
    imbalance = max(layout.time) / mean if mean else 1.0
    return PlanResult(
        name, plan, models, simulation, layout.cost(), imbalance, memory, tuple(predictions)
    )


def best_of(results: Sequence[PlanResult]) -> PlanResult:
    """Return the plan with the shortest simulated step; raise ``IrgraphError`` if there is none."""
    if not results:
        raise fail("no plan fits into the memory by what the ranks' models need", exit_code=1)
    return results[0]
