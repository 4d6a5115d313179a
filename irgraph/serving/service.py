"""Service of a host with placed tables: queries per second, latency, power, endurance."""

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
    PlacementProblem,
    Store,
    TableLayout,
    fixed_of,
    store,
    tables_of,
)
from irgraph.serving.search import search
from irgraph.tiers.hits import Policy
from irgraph.tiers.tier import Platform, SourcedFigure
from irgraph.verbs.place import place
from irgraph.verbs.tiered_lookups import READ, TablePlacement, placeable_lookups, pooling_of

MAX_LOAD = 0.7
"""Maximum load of a tier, as a share of its best rate; queues grow fast above."""

HOURS_PER_DAY = 24.0


class Service(Struct, frozen=True, kw_only=True):
    """One way to serve a load on a platform.

    Attributes:
        name: fast memory alone, or a slower tier.
        step: predicted microseconds of a single query.
        latency: mean microseconds of a query if hosts share the load evenly, including its wait for
            the device.
        qps: maximum queries per second of one host.
        bound: the cause of this maximum, a key of ``limits``.
        limits: maximum queries per second, by cause.
        fleet: hosts for the whole load, their power and price.
        load: load of the slower tier, as a share of its best rate.
        reads: reads of the slower tier in a query.
        link_bytes: bytes that cross the link of the slower tier in a query.
        hits: share of lookups of moved tables that the cache answers.
        moved: cached rows of each table on the slower tier, by name.
        moved_bytes: bytes of those tables.
        cache_bytes: bytes of the cache of rows.
        pooled: cached pooled bags of each moved table.
        pooled_bytes: bytes of the cache of pooled bags.
        pooled_hits: share of lookups of moved tables that are in cached pooled bags; ``hits`` is
            the hit rate of the other lookups.
        group: hosts that share one copy of the tables; their exchange is not counted.
        ranks: devices that serve one query together; their exchange is simulated.
        hours: minimum time between two rewrites of all moved tables, by the tier's endurance.
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
    """Requirements of a service: queries per second of all hosts, and maximum microseconds of each.

    With ``lists``, in the syntax of ``place`` (``""`` if rows of a bag are drawn independently),
    part of the memory for caches may be used for pooled bags.
    """

    qps: float
    latency: float
    policy: Policy = "lru"
    sub_block: bool = False
    lists: str | None = None


def services(
    graph: Graph, platform: Platform, service_load: ServiceLoad, options: PredictOptions
) -> list[Service]:
    """Return the services for a load, the one with the lowest power first.

    Raises:
        IrgraphError: no table is looked up (exit code 2), or no service meets the latency (1).
    """
    return services_and_others(graph, platform, service_load, options)[0]


def services_and_others(
    graph: Graph, platform: Platform, service_load: ServiceLoad, options: PredictOptions
) -> tuple[list[Service], list[str]]:
    """Return the result of ``services``, and the reasons why other placements are not in it."""
    if any(op.name == READ for op in graph.leaves()):
        message = "tables of the model are placed already, and what they take is not known"
        raise fail(message, hint="give the model as it was before place", exit_code=2)
    tables, fixed = tables_of(graph, options.indices, service_load.lists), fixed_of(graph)
    if not tables:
        raise fail(_no_placement(fixed), exit_code=2)
    fast, fixed_bytes = store(platform.fast), sum(table.nbytes for table in fixed)
    total_bytes = fixed_bytes + sum(t.nbytes for t in tables)
    candidates = [_without_tier(graph, platform, fast, total_bytes, service_load, options)]
    reasons = [] if candidates[0] else ["fast memory alone: a query takes longer than the limit"]
    for piece in platform.slow:
        slow = store(piece)
        problem = PlacementProblem(
            tables, fast.nbytes - fixed_bytes, slow, service_load.policy, service_load.sub_block
        )
        layout = search(problem) if problem.fast >= 0 else None
        if layout is None:
            reason = f"{slow.nbytes / 1e9:,.3g} GB do not hold the tables"
            if problem.fast < 0:
                size = f"{fixed_bytes / 1e9:,.3g} GB"
                reason = f"fast memory does not hold the {size} that cannot be moved"
            reasons.append(f"{slow.tier.name}: {reason}")
            continue
        if not layout.moved_tables:
            reasons.append(f"{slow.tier.name}: not needed, fast memory holds all tables")
            continue
        service = _best_service(graph, platform, problem, layout, service_load, options)
        candidates.append(service)
        reasons += [] if service else [f"{slow.tier.name}: a query takes longer than the limit"]
    served = [candidate for candidate in candidates if candidate is not None]
    if not served:
        raise fail("no placement serves the load", hint="; ".join(reasons), exit_code=1)
    return sorted(served, key=lambda candidate: (candidate.fleet.watts, candidate.name)), reasons


def _no_placement(fixed: Sequence[FixedTable]) -> str:
    """Return the reason why no table can be placed."""
    if not fixed:
        return "the model has no lookup of bags: nothing can be placed"
    return f"no table can be placed: {fixed[0].name}: {fixed[0].reason}"


def _best_service(
    graph: Graph,
    platform: Platform,
    problem: PlacementProblem,
    layout: TableLayout,
    service_load: ServiceLoad,
    options: PredictOptions,
) -> Service | None:
    """Return the service with a placement, with pooled bags if these reduce the power."""
    layouts = {
        candidate.pooled: candidate for candidate in (layout, problem.with_pooled_bags(layout))
    }
    placed_services = (
        _with_placement(graph, platform, problem, candidate, service_load, options)
        for candidate in layouts.values()
    )
    served = [service for service in placed_services if service is not None]
    return min(served, key=lambda service: (service.fleet.watts, service.latency), default=None)


def _without_tier(
    graph: Graph,
    platform: Platform,
    fast: Store,
    nbytes: float,
    service_load: ServiceLoad,
    options: PredictOptions,
) -> Service | None:
    """Return the service without a slower tier: groups of hosts that share a copy of the tables.

    Their exchange is not counted, so the result is an upper bound of their performance.
    """
    step = predict(graph, options).step_time
    limits = limits_of(platform.devices, step, service_load)
    if not limits["latency"] > 0:
        return None
    qps, bound = min((rate, cause) for cause, rate in limits.items())
    group = max(math.ceil(nbytes / max(fast.nbytes, 1.0)), 1)
    host = Host(qps, platform.base_watts.value, _value(platform.base_usd), group=group)
    copies = f" ({group} hosts hold a copy)" if group > 1 else ""
    hosts = fleet(host, service_load.qps)
    return Service(
        name=f"{fast.tier.name} alone{copies}",
        step=step,
        qps=qps,
        bound=bound,
        limits=limits,
        latency=mean_latency(step, service_load.qps / hosts.hosts, platform.devices),
        fleet=hosts,
        group=group,
    )


def _with_placement(
    graph: Graph,
    platform: Platform,
    problem: PlacementProblem,
    layout: TableLayout,
    service_load: ServiceLoad,
    options: PredictOptions,
) -> Service | None:
    """Return the service with a placement, its step simulated at its own load of the tier."""
    load, qps, bound, step = 0.0, 0.0, "", 0.0
    limits: dict[str, float] = {}
    for _ in range(2):  # once without a load to find it, once under it
        step = predict(_place_tables(graph, problem, layout, service_load, load), options).step_time
        limits = limits_of(platform.devices, step, service_load)
        if layout.seconds:
            limits[f"reads of {layout.slow.tier.name}"] = MAX_LOAD / layout.seconds
        if not limits["latency"] > 0:
            return None
        qps, bound = min((rate, cause) for cause, rate in limits.items())
        load = min(qps * layout.seconds, MAX_LOAD)
    hosts = fleet(Host(qps, 0.0, _usd(platform, layout.slow)), service_load.qps)
    host_qps = service_load.qps / hosts.hosts
    load = host_qps * layout.seconds
    hosts = replace(hosts, watts=hosts.hosts * _watts(platform, layout.slow, load))
    moved_bytes = sum(table.nbytes for table in layout.moved_tables)
    return Service(
        name=f"{layout.slow.pieces} x {layout.slow.tier.name}",
        step=step,
        qps=qps,
        bound=bound,
        limits=limits,
        latency=mean_latency(step, host_qps, platform.devices),
        fleet=hosts,
        load=load,
        reads=layout.query_demand.reads,
        link_bytes=layout.query_demand.nbytes,
        hits=layout.hit_rate(),
        moved=layout.cached_rows(),
        moved_bytes=moved_bytes,
        cache_bytes=layout.cache.cached_bytes,
        hours=_hours_between_rewrites(layout.slow, moved_bytes),
        pooled=layout.pooled,
        pooled_bytes=layout.pooled_bytes,
        pooled_hits=layout.pooled_rate(),
    )


def _place_tables(
    graph: Graph,
    problem: PlacementProblem,
    layout: TableLayout,
    service_load: ServiceLoad,
    load: float,
) -> Graph:
    """Return the step with its tables placed."""
    if not layout.moved_tables:
        return graph
    slow = layout.slow
    placement = TablePlacement(
        slow.tier.name,
        slow.pieces,
        layout.cached_rows(),
        problem.policy,
        problem.sub_block,
        load,
        {table.name: layout.pooled for table in layout.moved_tables if layout.pooled},
        service_load.lists or "",
    )
    moved_names = {table.name for table in layout.moved_tables}
    ways: dict[object, list[str]] = {}
    for name, _, op in placeable_lookups(graph):
        if name in moved_names:
            ways.setdefault(pooling_of(graph, op), []).append(name)
    for names in ways.values():
        graph = place(graph, names, placement).graph
    return graph


def limits_of(servers: float, step: float, service_load: ServiceLoad) -> dict[str, float]:
    """Return the maximum queries per second of devices, by compute time and by the latency limit.

    Queries arrive at random, and each device serves one after the other (M/D/1: the mean wait is
    u / (2 (1 - u)) steps at utilisation u). If a step is not shorter than the limit, the maximum
    is 0.
    """
    compute_qps = servers * 1e6 / step
    slack = max(service_load.latency / step - 1.0, 0.0)
    return {"compute": compute_qps, "latency": compute_qps * 2.0 * slack / (1.0 + 2.0 * slack)}


def mean_latency(step: float, qps: float, servers: float) -> float:
    """Return the mean microseconds of a query if ``servers`` share ``qps`` queries per second."""
    utilisation = min(qps * step / 1e6 / servers, 1.0 - 1e-9)
    return step * (1.0 + utilisation / (2.0 * (1.0 - utilisation)))


def _watts(platform: Platform, slow: Store, load: float) -> float:
    """Return the power of a host whose slow tier is between idle and its best rate."""
    idle = _value(slow.tier.idle_watts) or 0.0
    active = _value(slow.tier.active_watts) or idle
    return platform.base_watts.value + slow.pieces * (idle + load * (active - idle))


def _usd(platform: Platform, slow: Store) -> float | None:
    base, piece = _value(platform.base_usd), _value(slow.tier.price_usd)
    return None if base is None or piece is None else base + slow.pieces * piece


def _hours_between_rewrites(slow: Store, moved_bytes: float) -> float | None:
    """Return hours between rewrites of all moved tables that the tier's endurance allows."""
    writes = _value(slow.tier.dwpd)
    return None if not writes else HOURS_PER_DAY * moved_bytes / (writes * slow.nbytes)


def _value(figure: SourcedFigure | None) -> float | None:
    return None if figure is None else figure.value


def placed_model(
    graph: Graph,
    platform: Platform,
    service: Service,
    service_load: ServiceLoad,
    indices: Sequence[str] = (),
) -> Graph:
    """Return the step of a service, with the ops that read its slower tier."""
    for piece in platform.slow:
        slow = store(piece)
        if service.name == f"{slow.pieces} x {slow.tier.name}":
            tables, fixed = tables_of(graph, indices, service_load.lists), fixed_of(graph)
            fast = store(platform.fast).nbytes - sum(table.nbytes for table in fixed)
            problem = PlacementProblem(
                tables, fast, slow, service_load.policy, service_load.sub_block
            )
            layout = search(problem)
            if layout is None:
                return graph
            layout = problem.with_pooled_bags(layout) if service.pooled else layout
            return _place_tables(graph, problem, layout, service_load, service.load)
    return graph
