"""What a host serves with its tables placed: queries a second, latency, power, endurance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from irgraph.diagnostics import fail
from irgraph.ir.graph import Graph
from irgraph.predict.options import PredictOptions
from irgraph.predict.prediction import predict
from irgraph.serving.fleet import Fleet, Host, fleet
from irgraph.serving.problem import (
    FixedTable,
    Problem,
    Store,
    TableLayout,
    fixed_of,
    store,
    tables_of,
)
from irgraph.serving.search import search
from irgraph.tiers.hits import Policy
from irgraph.tiers.tier import Figure, Platform
from irgraph.verbs.place import place
from irgraph.verbs.tiered_lookups import READ, TablePlacement, placeable, pooling_of

MOST_LOAD = 0.7
"""Share of a tier's best rate that a host may ask of it: queues grow fast above."""

HOURS = 24.0


class Service(Struct, frozen=True, kw_only=True):
    """One way to serve a load on a platform.

    Attributes:
        name: of the way: fast memory alone, or a slower tier.
        step: microseconds of one query alone, predicted.
        latency: mean microseconds of a query where hosts share the load evenly, its wait for the
            device included.
        qps: queries a second of one host at most.
        bound: what bounds them.
        limits: queries a second by each cause.
        fleet: hosts for the whole load, their power and price.
        load: share of the slower tier's best rate that is asked of it then.
        reads: of the slower tier in a query.
        link_bytes: that cross the link of the slower tier in a query.
        hits: share of lookups of moved tables that the cache answers.
        moved: tables on the slower tier, and the rows of each that the cache holds.
        moved_bytes: of those tables.
        cache_bytes: of the cache of rows.
        pooled: bags of each moved table that a cache of pooled bags holds.
        pooled_bytes: of that cache.
        pooled_hits: share of lookups of moved tables that are of pooled bags; ``hits`` are of the
            others.
        group: hosts that hold one copy of the tables together, what they exchange not counted.
        ranks: devices that serve one query together, what they exchange simulated.
        hours: least time between two rewrites of all moved tables, by the tier's endurance.
    """

    name: str
    step: float
    latency: float
    qps: float
    bound: str
    limits: Mapping[str, float]
    fleet: Fleet
    load: float = 0.0
    reads: float = 0.0
    link_bytes: float = 0.0
    hits: float = 1.0
    moved: Mapping[str, int] = {}
    moved_bytes: float = 0.0
    cache_bytes: float = 0.0
    pooled: int = 0
    pooled_bytes: float = 0.0
    pooled_hits: float = 0.0
    group: int = 1
    ranks: int = 1
    hours: float | None = None


class ServiceLoad(Struct, frozen=True):
    """What is asked of a service: queries a second of all hosts, microseconds of each at most.

    With ``lists``, as ``place`` takes them (``""`` where rows of a bag are drawn one by one), part
    of the room for caches may hold pooled bags.
    """

    qps: float
    latency: float
    policy: Policy = "lru"
    sub_block: bool = False
    lists: str | None = None


def services(
    graph: Graph, platform: Platform, wanted: ServiceLoad, options: PredictOptions
) -> list[Service]:
    """Return the ways to serve a load, the one of least power first.

    Raises:
        IrgraphError: no table is looked up (exit code 2), or no way keeps the latency (1).
    """
    return services_and_others(graph, platform, wanted, options)[0]


def services_and_others(
    graph: Graph, platform: Platform, wanted: ServiceLoad, options: PredictOptions
) -> tuple[list[Service], list[str]]:
    """Return what ``services`` returns, and why other ways are not among them."""
    if any(op.name == READ for op in graph.leaves()):
        message = "tables of the model are placed already, and what they take is not known"
        raise fail(message, hint="give the model as it was before place", exit_code=2)
    tables, fixed = tables_of(graph, options.indices, wanted.lists), fixed_of(graph)
    if not tables:
        raise fail(_nothing(fixed), exit_code=2)
    fast, kept = store(platform.fast), sum(one.nbytes for one in fixed)
    whole = kept + sum(t.nbytes for t in tables)
    found = [_alone(graph, platform, fast, whole, wanted, options)]
    reasons = [] if found[0] else ["fast memory alone: a query takes longer than the limit"]
    for piece in platform.slow:
        slow = store(piece)
        problem = Problem(tables, fast.nbytes - kept, slow, wanted.policy, wanted.sub_block)
        best = search(problem) if problem.fast >= 0 else None
        if best is None:
            what = f"{slow.nbytes / 1e9:,.3g} GB do not hold the tables"
            if problem.fast < 0:
                what = f"fast memory does not hold the {kept / 1e9:,.3g} GB that cannot be moved"
            reasons.append(f"{slow.tier.name}: {what}")
            continue
        if not best.moved:
            reasons.append(f"{slow.tier.name}: not needed, fast memory holds all tables")
            continue
        one = _best(graph, platform, problem, best, wanted, options)
        found.append(one)
        reasons += [] if one else [f"{slow.tier.name}: a query takes longer than the limit"]
    served = [one for one in found if one is not None]
    if not served:
        raise fail("no placement serves the load", hint="; ".join(reasons), exit_code=1)
    return sorted(served, key=lambda one: (one.fleet.watts, one.name)), reasons


def _nothing(fixed: Sequence[FixedTable]) -> str:
    """Say why no table is placed."""
    if not fixed:
        return "the model has no lookup of bags: nothing can be placed"
    return f"no table can be placed: {fixed[0].name}: {fixed[0].why}"


def _best(
    graph: Graph,
    platform: Platform,
    problem: Problem,
    best: TableLayout,
    wanted: ServiceLoad,
    options: PredictOptions,
) -> Service | None:
    """Return the service with a placement, with pooled bags where these take less power."""
    each = {one.pooled: one for one in (best, problem.pooled(best))}
    made = (_placed(graph, platform, problem, one, wanted, options) for one in each.values())
    found = [one for one in made if one is not None]
    return min(found, key=lambda one: (one.fleet.watts, one.latency), default=None)


def _alone(
    graph: Graph,
    platform: Platform,
    fast: Store,
    nbytes: float,
    wanted: ServiceLoad,
    options: PredictOptions,
) -> Service | None:
    """Return the service without a slower tier: hosts that together hold one copy of the tables.

    What they exchange is not counted, so that they are better here than they can be.
    """
    step = predict(graph, options).step_time
    limits = limits_of(platform.devices, step, wanted)
    if not limits["latency"] > 0:
        return None
    qps, bound = min((rate, cause) for cause, rate in limits.items())
    group = max(math.ceil(nbytes / max(fast.nbytes, 1.0)), 1)
    one = Host(qps, platform.base_watts.value, _value(platform.base_usd), group=group)
    copies = f" ({group} hosts hold a copy)" if group > 1 else ""
    hosts = fleet(one, wanted.qps)
    return Service(
        name=f"{fast.tier.name} alone{copies}",
        step=step,
        qps=qps,
        bound=bound,
        limits=limits,
        latency=mean_latency(step, wanted.qps / hosts.hosts, platform.devices),
        fleet=hosts,
        group=group,
    )


def _placed(
    graph: Graph,
    platform: Platform,
    problem: Problem,
    best: TableLayout,
    wanted: ServiceLoad,
    options: PredictOptions,
) -> Service | None:
    """Return the service with a placement, its step simulated at the load that it makes."""
    load, qps, bound, step = 0.0, 0.0, "", 0.0
    limits: dict[str, float] = {}
    for _ in range(2):  # once without a load to find it, once under it
        step = predict(_rewritten(graph, problem, best, wanted, load), options).step_time
        limits = limits_of(platform.devices, step, wanted)
        if best.seconds:
            limits[f"reads of {best.slow.tier.name}"] = MOST_LOAD / best.seconds
        if not limits["latency"] > 0:
            return None
        qps, bound = min((rate, cause) for cause, rate in limits.items())
        load = min(qps * best.seconds, MOST_LOAD)
    hosts = fleet(Host(qps, 0.0, _usd(platform, best.slow)), wanted.qps)
    each = wanted.qps / hosts.hosts
    load = each * best.seconds
    hosts = replace(hosts, watts=hosts.hosts * _watts(platform, best.slow, load))
    moved = sum(table.nbytes for table in best.moved)
    return Service(
        name=f"{best.slow.pieces} x {best.slow.tier.name}",
        step=step,
        qps=qps,
        bound=bound,
        limits=limits,
        latency=mean_latency(step, each, platform.devices),
        fleet=hosts,
        load=load,
        reads=best.asked.reads,
        link_bytes=best.asked.nbytes,
        hits=best.hit_rate(),
        moved=best.rows_held(),
        moved_bytes=moved,
        cache_bytes=best.cache.bytes_held,
        hours=_hours(best.slow, moved),
        pooled=best.pooled,
        pooled_bytes=best.pooled_bytes,
        pooled_hits=best.pooled_rate(),
    )


def _rewritten(
    graph: Graph, problem: Problem, best: TableLayout, wanted: ServiceLoad, load: float
) -> Graph:
    """Return the step with its tables placed."""
    if not best.moved:
        return graph
    slow = best.slow
    where = TablePlacement(
        slow.tier.name,
        slow.pieces,
        best.rows_held(),
        problem.policy,
        problem.sub_block,
        load,
        {table.name: best.pooled for table in best.moved if best.pooled},
        wanted.lists or "",
    )
    moved = {table.name for table in best.moved}
    ways: dict[object, list[str]] = {}
    for name, _, op in placeable(graph):
        if name in moved:
            ways.setdefault(pooling_of(graph, op), []).append(name)
    for names in ways.values():
        graph = place(graph, names, where).graph
    return graph


def limits_of(servers: float, step: float, wanted: ServiceLoad) -> dict[str, float]:
    """Return queries a second that devices, or groups of them, compute, and serve within the time.

    Queries come at random, and each device serves one after the other (M/D/1: the mean wait is
    u / (2 (1 - u)) steps at utilisation u); a step as long as the limit, or longer, serves none.
    """
    most = servers * 1e6 / step
    slack = max(wanted.latency / step - 1.0, 0.0)
    return {"compute": most, "latency": most * 2.0 * slack / (1.0 + 2.0 * slack)}


def mean_latency(step: float, qps: float, servers: float) -> float:
    """Return the mean microseconds of a query where so many servers share so many a second."""
    used = min(qps * step / 1e6 / servers, 1.0 - 1e-9)
    return step * (1.0 + used / (2.0 * (1.0 - used)))


def _watts(platform: Platform, slow: Store, load: float) -> float:
    """Return the power of a host, its slow tier between idle and its best rate."""
    idle = _value(slow.tier.idle_watts) or 0.0
    active = _value(slow.tier.active_watts) or idle
    return platform.base_watts.value + slow.pieces * (idle + load * (active - idle))


def _usd(platform: Platform, slow: Store) -> float | None:
    base, piece = _value(platform.base_usd), _value(slow.tier.price_usd)
    return None if base is None or piece is None else base + slow.pieces * piece


def _hours(slow: Store, moved: float) -> float | None:
    """Return hours between rewrites of all moved tables that the tier's endurance allows."""
    writes = _value(slow.tier.dwpd)
    return None if not writes else HOURS * moved / (writes * slow.nbytes)


def _value(figure: Figure | None) -> float | None:
    return None if figure is None else figure.value


def placed_model(
    graph: Graph,
    platform: Platform,
    chosen: Service,
    wanted: ServiceLoad,
    indices: Sequence[str] = (),
) -> Graph:
    """Return the step of a service, with the ops that read its slower tier."""
    for piece in platform.slow:
        slow = store(piece)
        if chosen.name == f"{slow.pieces} x {slow.tier.name}":
            tables, fixed = tables_of(graph, indices, wanted.lists), fixed_of(graph)
            fast = store(platform.fast).nbytes - sum(one.nbytes for one in fixed)
            problem = Problem(tables, fast, slow, wanted.policy, wanted.sub_block)
            best = search(problem)
            if best is None:
                return graph
            best = problem.pooled(best) if chosen.pooled else best
            return _rewritten(graph, problem, best, wanted, chosen.load)
    return graph
