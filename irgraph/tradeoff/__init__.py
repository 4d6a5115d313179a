"""Trade-off between the accuracy of quantised tables and the resources of a service.

With rows of fewer bytes a cache contains more rows, so fewer reads reach a slower tier, or whole
tables fit into fast memory. The formats are executed as by ``quantize``. Each plan is then placed
and simulated as by ``place``, and may be sharded over several devices as by ``shard``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from irgraph.diagnostics import IrgraphError, fail
from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from irgraph.precision.candidates import TABLE, Plan, candidates, script
from irgraph.precision.measure import PrecisionBench
from irgraph.precision.report import FormatSearch
from irgraph.precision.search import FormatCost, best_sums, plan_of
from irgraph.predict.options import PredictOptions
from irgraph.serving.service import Service, ServiceLoad, services
from irgraph.tiers.tier import Platform
from irgraph.tradeoff.sharded_plan import PlanSharder, ShardedPlan

AIMS = ("power", "hosts", "step", "price", "links")
"""Objectives to trade against accuracy: watts or price of all hosts, their number, microseconds of
a query's step, bytes that a query transfers over the slower tier's link."""

BUDGET_STEPS = 8
"""Number of budgets, from the smallest divergence of a single format to the largest of all tables.
"""


class TradeoffPoint(Struct, frozen=True):
    """One plan of formats in one service.

    Attributes:
        formats: format by table; omitted tables are unchanged.
        kl: divergence of the joint plan's predictions, executed, nats.
        share: the divergence relative to the entropy of the reference's predictions.
        service: placement of the tables, and the resources of the service.
        aim: the objective that is traded against the divergence.
        front: whether no other point is better in one of both and at least equal in the other.
            Services whose hosts share a copy of the tables are excluded, because their exchange
            is not counted; if there are no other services, they are compared with each other.
        plan: formats by the number of the candidate.
        sharded_plan: the sharding of the tables, if several devices serve a query.
    """

    formats: Mapping[str, str]
    kl: float
    share: float
    service: Service
    aim: float
    front: bool
    plan: Plan
    sharded_plan: ShardedPlan | None = None


class ServedFormatSearch(FormatSearch):
    """Format search of ``quantize`` whose gain is the bytes saved in the served model's tables."""

    def __init__(self, bench: PrecisionBench, graph: Graph) -> None:
        super().__init__(bench, "parameters")
        self.graph = graph
        self._gains: dict[tuple[int, str], float] = {}
        _check_same_tables(bench, graph)

    def rewritten(self, plan: Plan) -> Graph:
        """Return the served model with a plan's formats."""
        text = script(self.bench.candidates, plan)
        return run(load_script(text), self.graph).graph if text else self.graph

    def gain(self, plan: Plan) -> float:
        """Return the bytes that a plan saves in the served model: the sum over its tables."""
        for pair in plan.items():
            if pair not in self._gains:
                rewritten = self.rewritten(dict([pair]))
                self._gains[pair] = _parameters(self.graph) - _parameters(rewritten)
        return sum(self._gains[pair] for pair in plan.items())


def _parameters(graph: Graph) -> float:
    return float(sum(d.tensor.nbytes for d in graph.tensors if d.role == "param"))


def _check_same_tables(bench: PrecisionBench, graph: Graph) -> None:
    """Raise ``IrgraphError`` unless both models have equal tables, except for their rows."""
    served_tables = {
        table.name: table for table in candidates(graph, ["i8"]) if table.kind == TABLE
    }
    widths = [
        {d.label or d.tensor.name: d.tensor.shape[1:] for d in model.tensors}
        for model in (bench.graph, graph)
    ]
    for candidate in (entry for entry in bench.candidates if entry.formats):
        counterpart = served_tables.get(candidate.name)
        name = candidate.name.removeprefix("%")
        if (
            counterpart is None
            or counterpart.results != candidate.results
            or widths[0][name] != widths[1][name]
        ):
            message = (
                f"table {candidate.name!r} is executed, and the model served looks up no such table"
            )
            hint = "both are to be one program, with other numbers of rows in its tables"
            raise fail(message, hint=hint, exit_code=2)


def plans(problem: ServedFormatSearch) -> list[Plan]:
    """Return the plans to place: the empty plan, each format for all tables, the best by budget.

    The best plans are selected by sums of gains and of logit errors; each is executed later.
    """
    items = problem.items
    result: list[Plan] = [{}]
    for target in dict.fromkeys(item.format for item in items):
        result.append({item.candidate: target for item in items if item.format == target})
    front = best_sums([item for item in items if item.gain > 0], problem.interaction)
    costs = [point.kl for point in front]
    result += [plan_of(front[bisect_right(costs, b) - 1].choices) for b in _budgets(items)]
    return [dict(p) for p in dict.fromkeys(tuple(sorted(plan.items())) for plan in result)]


def _budgets(items: Sequence[FormatCost]) -> Iterator[float]:
    """Yield a geometric sequence of budgets over the range of divergences of formats."""
    worst: dict[int, float] = {}
    for item in items:
        worst[item.candidate] = max(worst.get(item.candidate, 0.0), item.kl)
    min_kl = min((item.kl for item in items if item.kl > 0), default=0.0)
    max_kl = sum(worst.values())
    for step in range(BUDGET_STEPS if 0 < min_kl < max_kl else 0):
        yield min_kl * (max_kl / min_kl) ** (step / (BUDGET_STEPS - 1))


def tradeoff(
    bench: PrecisionBench,
    served: Graph,
    platform: Platform,
    service_load: ServiceLoad,
    options: PredictOptions,
    aim: str = AIMS[0],
    *,
    spread: bool = False,
) -> list[TradeoffPoint]:
    """Return every plan in every service by increasing divergence, with the Pareto front marked.

    Args:
        bench: executes plans; its candidates are the tables, in the formats to try.
        served: the model that is placed: the bench's, or the same program with larger tables.
        platform: a kind of host.
        service_load: queries per second of all hosts, and the maximum time of each.
        options: options of the simulation.
        aim: one of ``AIMS``.
        spread: whether to shard tables over the devices of a host as well, exchange simulated.

    Raises:
        IrgraphError: no table can be narrower or the models' tables differ (exit code 2), or no
            plan is served in time (1).
    """
    if not any(candidate.formats for candidate in bench.candidates):
        refusals = [
            f"{candidate.name}: {refusal}"
            for candidate in bench.candidates
            for refusal in candidate.refused.values()
        ]
        hint = next(iter(refusals), "")
        raise fail("no table of the model can be in narrower rows", hint=hint, exit_code=2)
    problem, points = ServedFormatSearch(bench, served), list[TradeoffPoint]()
    sharder = PlanSharder(served, platform, service_load, options) if spread else None
    reason: IrgraphError | None = None
    for plan in plans(problem):
        formats = {bench.candidates[number].name: target for number, target in plan.items()}
        pairs = sharder.services(formats) if sharder is not None else []
        points += [
            replace(_evaluate(bench, plan, service, aim), sharded_plan=sharded)
            for service, sharded in pairs
        ]
        try:
            ways = services(problem.rewritten(plan), platform, service_load, options)
        except IrgraphError as error:
            reason = error
            continue
        points += [_evaluate(bench, plan, service, aim) for service in ways]
    if not points and reason is not None:
        raise reason
    if not any(math.isfinite(point.aim) for point in points):
        raise fail(f"no {aim} of {platform.name} is known", exit_code=2)
    ordered = sorted(points, key=lambda p: (p.kl, p.aim, p.service.name))
    comparable = [point for point in ordered if _is_counted(point, sharder)] or ordered
    front = [p for n, p in enumerate(comparable) if _is_on_front(p, comparable[:n])]
    return [replace(point, front=any(p is point for p in front)) for point in ordered]


def _is_counted(point: TradeoffPoint, sharder: PlanSharder | None) -> bool:
    """Return whether the whole exchange between the devices of a service is counted.

    With a sharder, a service without a slower tier counts only if the tables fit on one device.
    With a slower tier every device of a host is assumed to have the cache and all fast tables.
    """
    if point.service.group > 1:
        return False
    return (
        sharder is None
        or point.service.ranks > 1
        or bool(point.service.moved)
        or sharder.fits_one_device(point.formats)
    )


def _evaluate(bench: PrecisionBench, plan: Plan, service: Service, aim: str) -> TradeoffPoint:
    errors = bench.errors(plan) if plan else None
    formats = {bench.candidates[number].name: target for number, target in plan.items()}
    kl, share = (errors.kl, errors.share) if errors else (0.0, 0.0)
    return TradeoffPoint(formats, kl, share, service, _aims(service)[aim], False, plan)


def _aims(service: Service) -> Mapping[str, float]:
    price = math.inf if service.fleet.usd is None else service.fleet.usd
    return {
        "power": service.fleet.watts,
        "hosts": service.fleet.hosts,
        "step": service.step,
        "price": price,
        "links": service.link_bytes,
    }


def _is_on_front(point: TradeoffPoint, predecessors: Sequence[TradeoffPoint]) -> bool:
    """Return whether a point has a better aim than all points of equal or less divergence."""
    return math.isfinite(point.aim) and all(point.aim < other.aim for other in predecessors)


def best_within_budget(points: Sequence[TradeoffPoint], budget: float) -> TradeoffPoint | None:
    """Return the point of the front with the lowest aim within a budget of divergence, nats."""
    affordable = [point for point in points if point.front and point.kl <= budget]
    return min(affordable, key=lambda point: point.aim, default=None)


def as_row(point: TradeoffPoint) -> dict[str, Any]:
    """Return a point as a row for JSON: watts, dollars, microseconds, bytes, reads per query."""
    service = point.service
    return {
        "formats": dict(point.formats),
        "kl": point.kl,
        "kl_share": point.share,
        "tables_on": service.name,
        "front": point.front,
        "devices": service.ranks,
        "hosts": service.fleet.hosts,
        "watts": service.fleet.watts,
        "usd": service.fleet.usd,
        "step_us": service.step,
        "latency_us": service.latency,
        "hit_rate": service.hits,
        "reads": service.reads,
        "link_bytes": service.link_bytes,
        "cache_bytes": service.cache_bytes,
        "moved_bytes": service.moved_bytes,
        "pooled_bytes": service.pooled_bytes,
        "pooled_hits": service.pooled_hits,
    }
