"""``irgraph place``: placement of a service's embedding tables, and the hosts that it requires."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from irgraph.cli import common as cli
from irgraph.cli.html import HtmlOption
from irgraph.cli.traces import print_rows

if TYPE_CHECKING:
    from irgraph.ir.graph import Graph
    from irgraph.precision.measure import PrecisionBench
    from irgraph.predict.options import PredictOptions
    from irgraph.serving.service import Service, ServiceLoad
    from irgraph.tiers.tier import Platform
    from irgraph.tradeoff import TradeoffPoint
    from irgraph.tradeoff.sharded_plan import ShardedPlan

PANEL = "predict"

BUDGET = "0.02%"
"""Default budget of divergence for the written model."""

DRAWN_LISTS = "drawn"
"""Value of ``--lists`` for bags whose rows are drawn independently."""

PlatformOption = Annotated[
    str,
    typer.Option(
        "--platform", metavar="NAME", help="A platform of `irgraph tiers`, or a .json file."
    ),
]
RateOption = Annotated[
    float, typer.Option("--qps", help="Queries per second; one step is one query.")
]
LatencyOption = Annotated[
    str,
    typer.Option(
        "--latency", metavar="TIME", help="Limit on the mean time of a query, as in 100ms."
    ),
]
IndicesOption = Annotated[
    list[str] | None,
    typer.Option(metavar="[TABLE=]SPEC", help="Distribution of embedding indices."),
]
PolicyOption = Annotated[
    str, typer.Option("--policy", help="Policy of the row cache: lru, lfu, static.")
]
RowsOption = Annotated[
    bool, typer.Option("--rows", help="Read single rows instead of whole blocks.")
]
ListsOption = Annotated[
    str | None,
    typer.Option(
        "--lists",
        metavar="N LAW|drawn",
        help="Allow a cache of pooled bags; how lists of indices recur, as in '100000 zipf:0.9'.",
    ),
]
FormatsOption = Annotated[
    str | None,
    typer.Option(
        "--formats",
        metavar="LIST",
        help="Also try tables in these formats, as in i8,i4: accuracy against cost.",
    ),
]
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="FILE.pt|FILE.py:NAME",
        help="With --formats: parameters and batches, as for `irgraph quantize`; FILE.py:NAME "
        "runs its code.",
    ),
]
ExecutedOption = Annotated[
    str | None,
    typer.Option(
        "--executed",
        metavar="MODEL",
        help="With --formats: the same program with tables small enough to execute.",
    ),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="KL",
        help="With --formats: divergence allowed in what --output writes.",
        show_default=BUDGET,
    ),
]
SpreadOption = Annotated[
    bool,
    typer.Option(
        "--spread",
        help="With --formats: also shard tables over a host's devices, and simulate the exchange.",
    ),
]
AimOption = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="WHAT",
        help="With --formats: what to trade against accuracy: power, hosts, step, price, links.",
        show_default="power",
    ),
]


def place(
    model: cli.ModelArgument,
    platform: PlatformOption,
    qps: RateOption,
    latency: LatencyOption,
    indices: IndicesOption = None,
    dim: cli.DimOption = None,
    policy: PolicyOption = "lru",
    rows: RowsOption = False,
    lists: ListsOption = None,
    formats: FormatsOption = None,
    data: DataOption = None,
    executed: ExecutedOption = None,
    budget: BudgetOption = None,
    spread: SpreadOption = False,
    aim: AimOption = None,
    output: cli.OutputOption = None,
    html: HtmlOption = None,
    json: cli.JsonOption = False,
) -> None:
    """Search for a placement of an inference step's tables on slower memory tiers.

    Shows a host's queries per second under a latency limit, and the fleet's hosts, power and price.
    --formats also tries narrower tables; each plan's divergence is measured by executing it.
    """
    from irgraph.diagnostics import fail
    from irgraph.predict.options import PredictOptions
    from irgraph.serving.service import services_and_others
    from irgraph.tiers.library import load_platform
    from irgraph.verbs.refusal import RefusedError

    graph = cli.with_dim_options(cli.read_typed_model(model), dim)
    host = load_platform(platform)
    options = PredictOptions(device=host.device, host=host.host, indices=indices or ())
    cli.print_step_notes(graph, host.host)
    service_load = _service_load(qps, latency, policy, rows, lists)
    subject = f"{host.name}: {qps:g} queries a second, {latency} each"
    request = PlacementRequest(graph, host, service_load, options, subject, spread)
    if formats is not None:
        budget_and_aim = (BUDGET if budget is None else budget, "power" if aim is None else aim)
        _tradeoff(request, formats, data, executed, *budget_and_aim, output, html, json)
        return
    for name, value in (
        ("--data", data),
        ("--executed", executed),
        ("--spread", spread or None),
        ("--budget", budget),
        ("--for", aim),
    ):
        if value is not None:
            raise fail(f"{name} is for formats of tables: --formats is missing", exit_code=2)
    try:
        service_list, omissions = services_and_others(graph, host, service_load, options)
    except RefusedError as error:
        raise fail(f"the tables are not placed: {error.reason}") from None
    _write_outputs(request, graph, service_list, output, html)
    if json:
        from msgspec import to_builtins

        cli.write_json(
            [to_builtins(service) | {"latency_us": service.latency} for service in service_list]
        )
    else:
        print_rows(subject, list(map(_row, service_list)))
        for service in service_list:
            _print_service(service)
    _print_omissions(graph, service_list)
    for reason in omissions:
        cli.print_error(f"not shown: {reason}")


def _print_omissions(graph: Graph, service_list: Sequence[Service]) -> None:
    """Print the traffic that services do not count, and the tables that cannot be placed."""
    from irgraph.serving.problem import fixed_of

    if any(service.group > 1 for service in service_list):
        cli.print_error("traffic between hosts that share a copy is not counted")
    for table in fixed_of(graph):
        cli.print_error(
            f"{table.name} stays in fast memory, {table.nbytes / 1e9:,.3g} GB: {table.reason}"
        )


def _write_outputs(
    request: PlacementRequest,
    graph: Graph,
    service_list: Sequence[Service],
    output: str | None,
    html: str | None,
) -> None:
    """Write the model of the first service and the report of all, if requested."""
    if output is None and html is None:
        return
    from irgraph.text import print_graph

    placed_graph = request.place(graph, service_list[0])
    if output is not None:
        cli.write_result(print_graph(placed_graph), output)
    if html is not None:
        from irgraph.cli.html import write_page
        from irgraph.pages.placement import service_page
        from irgraph.predict.prediction import predict

        query = predict(placed_graph, request.options)
        write_page(
            service_page(request.subject, service_list, query, request.service_load.latency), html
        )


def _service_load(
    qps: float, latency: str, policy: str, rows: bool, lists: str | None
) -> ServiceLoad:
    """Return the load of the service from the command's options."""
    from irgraph.diagnostics import fail, suggestion
    from irgraph.diagnostics.quantities import parse_time
    from irgraph.serving.service import ServiceLoad
    from irgraph.tiers.bags import read_lists
    from irgraph.tiers.hits import POLICIES

    policy_name = next((name for name in POLICIES if name == policy), None)
    if policy_name is None:
        message = f"--policy: expected one of {', '.join(POLICIES)}, not {policy!r}"
        raise fail(message + suggestion(policy, POLICIES), exit_code=2)
    if not 0 < qps < float("inf"):
        raise fail(f"--qps: expected more than 0 queries per second, not {qps:g}", exit_code=2)
    if lists is not None and lists != DRAWN_LISTS and read_lists(lists) is None:
        hint = f"as in '100000 zipf:0.9', or {DRAWN_LISTS}"
        raise fail(f"--lists: expected a number and a law, not {lists!r}", hint=hint, exit_code=2)
    list_law = "" if lists == DRAWN_LISTS else lists
    return ServiceLoad(qps, parse_time(latency, "--latency"), policy_name, rows, list_law)


def _row(service: Service) -> dict[str, Any]:
    price = "unknown" if service.fleet.usd is None else f"{service.fleet.usd:,.0f}"
    return {
        "tables on": service.name,
        "query ms": f"{service.latency / 1e3:.2f}",
        "qps a host": f"{service.qps:,.0f}",
        "bound by": service.bound,
        "hosts": f"{service.fleet.hosts:,}",
        "kW": f"{service.fleet.watts / 1e3:,.1f}",
        "$": price,
    }


def _print_service(service: Service) -> None:
    """Print the tables on the slower tier, its caches and its load."""
    if not service.moved:
        return
    hours = "unknown" if service.hours is None else f"at least {service.hours:.2g} h apart"
    table_count = f"{len(service.moved)} table{'s' * (len(service.moved) > 1)}"
    bags, lookups = "", "of their lookups"
    if service.pooled:
        size = f"{service.pooled_bytes / 1e9:,.3g} GB of {service.pooled:,} pooled bags of each"
        bags, lookups = f"{size} answer {service.pooled_hits:.1%} {lookups}; ", "of the others"
    cli.print_error(
        f"{service.name}: {table_count}, {service.moved_bytes / 1e9:,.3g} GB; {bags}"
        f"{service.cache_bytes / 1e9:,.3g} GB of cache answer {service.hits:.1%} {lookups}; "
        f"{service.reads:,.0f} reads a query, load {service.load:.0%}; rewrites of all: {hours}"
    )


class PlacementRequest(NamedTuple):
    """A placement problem of the command line: a model on hosts under a load."""

    graph: Graph
    platform: Platform
    service_load: ServiceLoad
    options: PredictOptions
    subject: str
    spread: bool = False

    def place(self, graph: Graph, service: Service) -> Graph:
        """Return a step with its tables placed as in a service."""
        from irgraph.serving.service import placed_model

        return placed_model(
            graph, self.platform, service, self.service_load, list(self.options.indices)
        )


def _tradeoff(
    request: PlacementRequest,
    formats: str,
    data: str | None,
    executed: str | None,
    budget: str,
    aim: str,
    output: str | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Show the Pareto front of accuracy and resources; write the best point within the budget."""
    from irgraph.diagnostics import fail
    from irgraph.precision.candidates import TABLE, candidates
    from irgraph.precision.data import random_batch, read_data
    from irgraph.precision.measure import PrecisionBench
    from irgraph.precision.option_values import read_budget, read_formats
    from irgraph.tradeoff import AIMS, as_row, best_within_budget, tradeoff

    if aim not in AIMS:
        raise fail(f"--for: expected one of {', '.join(AIMS)}, not {aim!r}", exit_code=2)
    executed_graph = request.graph if executed is None else cli.read_typed_model(executed)
    bench_data = random_batch(executed_graph) if data is None else read_data(data, executed_graph)
    table_candidates = [
        c for c in candidates(executed_graph, read_formats(formats, TABLE)) if c.kind == TABLE
    ]
    bench = PrecisionBench(executed_graph, table_candidates, bench_data, request.options)
    limit = read_budget(budget, bench)
    points = tradeoff(
        bench,
        request.graph,
        request.platform,
        request.service_load,
        request.options,
        aim,
        spread=request.spread,
    )
    best = best_within_budget(points, limit)
    rows = [as_row(point) | {"chosen": point is best} for point in points]
    if output is not None:
        _write(request, bench, best, output)
    if html is not None:
        _report(request, bench, best, rows, (aim, limit), html)
    if as_json:
        cli.write_json({"data": bench_data.source, "for": aim, "budget": limit, "points": rows})
        return
    print_rows(
        request.subject,
        [_cells(point, request.service_load, point is best) for point in points if point.front],
    )
    dominated = [point for point in points if point.sharded_plan is not None and not point.front]
    if dominated:
        print_rows(
            "sharded over devices, dominated by other plans",
            [_cells(point, request.service_load, False) for point in dominated],
        )
    cli.print_error(f"data: {bench_data.source}")
    cli.print_error(f"{len(points)} plans simulated; those on the Pareto front are shown")
    _print_omissions(request.graph, [point.service for point in points if point.front])


def _placed_model(request: PlacementRequest, bench: PrecisionBench, point: TradeoffPoint) -> Graph:
    """Return the model of a point, its tables in their formats and placed."""
    from irgraph.tradeoff import ServedFormatSearch

    return request.place(
        ServedFormatSearch(bench, request.graph).rewritten(point.plan), point.service
    )


def _write(
    request: PlacementRequest, bench: PrecisionBench, point: TradeoffPoint | None, output: str
) -> None:
    """Write the model of a point."""
    from irgraph.diagnostics import fail
    from irgraph.text import print_graph

    if point is None:
        raise fail("no plan is within the budget", exit_code=1)
    if point.sharded_plan is not None:
        _write_ranks(point.sharded_plan, output)
        return
    cli.write_result(print_graph(_placed_model(request, bench, point)), output)


def _report(
    request: PlacementRequest,
    bench: PrecisionBench,
    point: TradeoffPoint | None,
    rows: Sequence[dict[str, Any]],
    aim: tuple[str, float],
    path: str,
) -> None:
    """Write the report of all points; ``aim`` is the objective and the budget in nats."""
    from irgraph.cli.html import write_page
    from irgraph.pages.placement import tradeoff_page
    from irgraph.predict.prediction import predict

    single_device = point if point is not None and point.sharded_plan is None else None
    query = (
        None
        if single_device is None
        else predict(_placed_model(request, bench, single_device), request.options)
    )
    write_page(tradeoff_page(request.subject, bench.data.source, rows, *aim, query), path)


def _write_ranks(sharded_plan: ShardedPlan, folder: str) -> None:
    """Write the models of all ranks, their tables in their formats, and the plan."""
    from irgraph.text import print_graph

    Path(folder).mkdir(parents=True, exist_ok=True)
    for rank, model in enumerate(sharded_plan.models):
        cli.write_result(print_graph(model), str(Path(folder) / f"rank{rank}.ir"))
    cli.write_result(str(sharded_plan.plan), str(Path(folder) / "plan.json"))


def _cells(point: TradeoffPoint, service_load: ServiceLoad, chosen: bool) -> dict[str, Any]:
    """Return a point of the front as cells; tables of one format are counted."""
    service, counts = point.service, list(point.formats.values())
    kinds = ", ".join(
        f"{counts.count(number_format)} {number_format}" for number_format in dict.fromkeys(counts)
    )
    return {
        "tables": kinds or "as they are",
        "KL": f"{point.kl:.2g}",
        "of entropy": f"{point.share:.2g}",
        "on": service.name,
        "hits": f"{service.hits:.1%}" if service.moved else "",
        "reads/s": f"{service.reads * service_load.qps:,.0f}" if service.moved else "",
        "step us": f"{service.step:,.0f}",
        "hosts": f"{service.fleet.hosts:,}",
        "kW": f"{service.fleet.watts / 1e3:,.2f}",
        "$": "unknown" if service.fleet.usd is None else f"{service.fleet.usd:,.0f}",
        "": "chosen" if chosen else "",
    }
