"""Narrower tables beside where they lie: what accuracy costs, and what a service then takes.

Rows of fewer bytes let a cache hold more of them, so that fewer reads reach a slower tier, or let
fast memory hold tables whole. Formats are those of ``quantize``, executed; each plan is then placed
and simulated as ``place`` does it, and may be spread over several devices as ``shard`` does it.
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
from irgraph.precision.measure import Bench
from irgraph.precision.report import FormatSearch
from irgraph.precision.search import Item, best_sums, plan_of
from irgraph.predict.options import PredictOptions
from irgraph.serving.service import Service, ServiceLoad, services
from irgraph.tiers.tier import Platform
from irgraph.tradeoff.sharded_plan import PlanSharder, ShardedPlan

AIMS = ("power", "hosts", "step", "price", "links")
"""What may stand against accuracy: watts or price of all hosts, how many they are, microseconds of
a query's step, bytes that it brings over the slower tier's link."""

STEPS = 8
"""Budgets between the least divergence of a single format and the largest of all tables."""


class Point(Struct, frozen=True):
    """One plan of formats, served in one way.

    Attributes:
        formats: by table; those left out stay as they are.
        kl: divergence of the joint plan's predictions, executed, nats.
        share: the same over the entropy of the reference's predictions.
        way: where the tables lie, and what the service takes.
        aim: what stands against the divergence.
        front: whether no other point has both less, or one less and the other equal. Points of
            several hosts that hold one copy of the tables together are left out, as what they
            exchange is not counted; if there are no others they are compared with each other.
        plan: formats by the number of the candidate.
        spread: over which devices, where several serve a query.
    """

    formats: Mapping[str, str]
    kl: float
    share: float
    way: Service
    aim: float
    front: bool
    plan: Plan
    spread: ShardedPlan | None = None


class Served(FormatSearch):
    """The problem of ``quantize``'s search whose gain are bytes of the tables that are served."""

    def __init__(self, bench: Bench, graph: Graph) -> None:
        super().__init__(bench, "parameters")
        self.graph = graph
        self._gains: dict[tuple[int, str], float] = {}
        _check_same(bench, graph)

    def rewritten(self, plan: Plan) -> Graph:
        """Return the served model with a plan's formats."""
        text = script(self.bench.known, plan)
        return run(load_script(text), self.graph).graph if text else self.graph

    def gain(self, plan: Plan) -> float:
        """Return bytes that parameters of the served model take less: tables do not share any."""
        for pair in plan.items():
            if pair not in self._gains:
                after = self.rewritten(dict([pair]))
                self._gains[pair] = _parameters(self.graph) - _parameters(after)
        return sum(self._gains[pair] for pair in plan.items())


def _parameters(graph: Graph) -> float:
    return float(sum(d.tensor.nbytes for d in graph.tensors if d.role == "param"))


def _check_same(bench: Bench, graph: Graph) -> None:
    """Refuse a model whose tables are not those that were executed, but for their rows."""
    there = {one.name: one for one in candidates(graph, ["i8"]) if one.kind == TABLE}
    widths = [
        {d.label or d.tensor.name: d.tensor.shape[1:] for d in each.tensors}
        for each in (bench.graph, graph)
    ]
    for one in (known for known in bench.known if known.formats):
        other = there.get(one.name)
        name = one.name.removeprefix("%")
        if other is None or other.results != one.results or widths[0][name] != widths[1][name]:
            message = f"table {one.name!r} is executed, and the model served looks up no such table"
            hint = "both are to be one program, with other numbers of rows in its tables"
            raise fail(message, hint=hint, exit_code=2)


def plans(problem: Served) -> list[Plan]:
    """Return plans to be placed: none, each format for all tables, the best of several budgets.

    The best are those of the sums of gains and of logits' errors; each is executed later.
    """
    items = problem.items
    found: list[Plan] = [{}]
    for to in dict.fromkeys(item.format for item in items):
        found.append({item.candidate: to for item in items if item.format == to})
    front = best_sums([item for item in items if item.gain > 0], problem.common)
    costs = [point.kl for point in front]
    found += [plan_of(front[bisect_right(costs, b) - 1].chosen) for b in _budgets(items)]
    return [dict(p) for p in dict.fromkeys(tuple(sorted(plan.items())) for plan in found)]


def _budgets(items: Sequence[Item]) -> Iterator[float]:
    """Yield budgets, each so many times the one before, over what formats may cost."""
    worst: dict[int, float] = {}
    for item in items:
        worst[item.candidate] = max(worst.get(item.candidate, 0.0), item.kl)
    least = min((item.kl for item in items if item.kl > 0), default=0.0)
    most = sum(worst.values())
    for step in range(STEPS if 0 < least < most else 0):
        yield least * (most / least) ** (step / (STEPS - 1))


def tradeoff(
    bench: Bench,
    served: Graph,
    platform: Platform,
    wanted: ServiceLoad,
    options: PredictOptions,
    aim: str = AIMS[0],
    *,
    spread: bool = False,
) -> list[Point]:
    """Return every plan served in every way, by rising divergence, the front among them marked.

    Args:
        bench: executes plans; its candidates are the tables, in the formats to try.
        served: the model that is placed: the bench's, or the same program with larger tables.
        platform: a kind of host.
        wanted: queries a second of all hosts, and the time of each.
        options: how steps are simulated.
        aim: one of ``AIMS``.
        spread: whether tables are also spread over the devices of a host, exchange simulated.

    Raises:
        IrgraphError: no table can be narrower or the models' tables differ (exit code 2), or no
            plan is served in time (1).
    """
    if not any(one.formats for one in bench.known):
        whys = [f"{one.name}: {why}" for one in bench.known for why in one.refused.values()]
        hint = next(iter(whys), "")
        raise fail("no table of the model can be in narrower rows", hint=hint, exit_code=2)
    problem, found = Served(bench, served), list[Point]()
    over = PlanSharder(served, platform, wanted, options) if spread else None
    reason: IrgraphError | None = None
    for plan in plans(problem):
        named = {bench.known[number].name: to for number, to in plan.items()}
        pairs = over.services(named) if over is not None else []
        found += [replace(_point(bench, plan, way, aim), spread=one) for way, one in pairs]
        try:
            ways = services(problem.rewritten(plan), platform, wanted, options)
        except IrgraphError as error:
            reason = error
            continue
        found += [_point(bench, plan, way, aim) for way in ways]
    if not found and reason is not None:
        raise reason
    if not any(math.isfinite(one.aim) for one in found):
        raise fail(f"no {aim} of {platform.name} is known", exit_code=2)
    ordered = sorted(found, key=lambda p: (p.kl, p.aim, p.way.name))
    alone = [one for one in ordered if _is_counted(one, over)] or ordered
    best = {id(one) for n, one in enumerate(alone) if _best(one, alone[:n])}
    return [replace(one, front=id(one) in best) for one in ordered]


def _is_counted(one: Point, over: PlanSharder | None) -> bool:
    """Return whether all that the devices of a way exchange is counted.

    Where tables are spread, fast memory alone counts only if one device holds them; a cache, and
    tables beside it, count as if every device of a host had all of them.
    """
    if one.way.group > 1:
        return False
    return over is None or one.way.ranks > 1 or bool(one.way.moved) or over.alone(one.formats)


def _point(bench: Bench, plan: Plan, way: Service, aim: str) -> Point:
    errors = bench.errors(plan) if plan else None
    formats = {bench.known[number].name: to for number, to in plan.items()}
    kl, share = (errors.kl, errors.share) if errors else (0.0, 0.0)
    return Point(formats, kl, share, way, _aims(way)[aim], False, plan)


def _aims(way: Service) -> Mapping[str, float]:
    price = math.inf if way.fleet.usd is None else way.fleet.usd
    return {
        "power": way.fleet.watts,
        "hosts": way.fleet.hosts,
        "step": way.step,
        "price": price,
        "links": way.link_bytes,
    }


def _best(one: Point, before: Sequence[Point]) -> bool:
    """Return whether a point betters all of no greater divergence."""
    return math.isfinite(one.aim) and all(one.aim < other.aim for other in before)


def chosen(points: Sequence[Point], budget: float) -> Point | None:
    """Return the point of the front with the least aim within a budget of divergence, nats."""
    within = [one for one in points if one.front and one.kl <= budget]
    return min(within, key=lambda one: one.aim, default=None)


def as_row(one: Point) -> dict[str, Any]:
    """Return a point as plain figures: watts, dollars, microseconds, bytes and reads a second."""
    way = one.way
    return {
        "formats": dict(one.formats),
        "kl": one.kl,
        "kl_share": one.share,
        "tables_on": way.name,
        "front": one.front,
        "devices": way.ranks,
        "hosts": way.fleet.hosts,
        "watts": way.fleet.watts,
        "usd": way.fleet.usd,
        "step_us": way.step,
        "latency_us": way.latency,
        "hit_rate": way.hits,
        "reads": way.reads,
        "link_bytes": way.link_bytes,
        "cache_bytes": way.cache_bytes,
        "moved_bytes": way.moved_bytes,
        "pooled_bytes": way.pooled_bytes,
        "pooled_hits": way.pooled_hits,
    }
