"""``irgraph place``: where embedding tables of a service lie, and the hosts that it then takes."""

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
"""The budget of what is written, unless one is given."""

DRAWN = "drawn"
"""What ``--lists`` takes where rows of a bag are drawn one by one."""

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
        help="With --formats: parameters and batches, as for `irgraph quantize`.",
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

    graph = cli.with_dim_options(cli.read_model(model), dim)
    host = load_platform(platform)
    options = PredictOptions(device=host.device, host=host.host, indices=indices or ())
    wanted = _wanted(qps, latency, policy, rows, lists)
    what = f"{host.name}: {qps:g} queries a second, {latency} each"
    asked = PlacementRequest(graph, host, wanted, options, what, spread)
    if formats is not None:
        against = (BUDGET if budget is None else budget, "power" if aim is None else aim)
        _tradeoff(asked, formats, data, executed, *against, output, html, json)
        return
    for name, given in (
        ("--data", data),
        ("--executed", executed),
        ("--spread", spread or None),
        ("--budget", budget),
        ("--for", aim),
    ):
        if given is not None:
            raise fail(f"{name} is for formats of tables: --formats is missing", exit_code=2)
    try:
        found, others = services_and_others(graph, host, wanted, options)
    except RefusedError as error:
        raise fail(f"the tables are not placed: {error.reason}") from None
    _written(asked, graph, found, output, html)
    if json:
        from msgspec import to_builtins

        cli.write_json([to_builtins(one) | {"latency_us": one.latency} for one in found])
    else:
        print_rows(what, list(map(_row, found)))
        for one in found:
            _say(one)
    _uncounted(graph, found)
    for reason in others:
        cli.print_error(f"not shown: {reason}")


def _uncounted(graph: Graph, ways: Sequence[Service]) -> None:
    """Say what is left out of ways to serve a model, and which of its tables have one place."""
    from irgraph.serving.problem import fixed_of

    if any(one.group > 1 for one in ways):
        cli.print_error("traffic between hosts that share a copy is not counted")
    for table in fixed_of(graph):
        cli.print_error(
            f"{table.name} stays in fast memory, {table.nbytes / 1e9:,.3g} GB: {table.reason}"
        )


def _written(
    asked: PlacementRequest,
    graph: Graph,
    ways: Sequence[Service],
    output: str | None,
    html: str | None,
) -> None:
    """Write the model of the first way, and the report of all, where they are asked for."""
    if output is None and html is None:
        return
    from irgraph.text import print_graph

    made = asked.placed(graph, ways[0])
    if output is not None:
        cli.write_result(print_graph(made), output)
    if html is not None:
        from irgraph.cli.html import write_page
        from irgraph.pages.placement import service_page
        from irgraph.predict.prediction import predict

        query = predict(made, asked.options)
        write_page(service_page(asked.what, ways, query, asked.wanted.latency), html)


def _wanted(qps: float, latency: str, policy: str, rows: bool, lists: str | None) -> ServiceLoad:
    """Return what is asked of the service by the command's options."""
    from irgraph.diagnostics import fail, suggestion
    from irgraph.predict.limits import parse_time
    from irgraph.serving.service import ServiceLoad
    from irgraph.tiers.bags import read_lists
    from irgraph.tiers.hits import POLICIES

    named = next((known for known in POLICIES if known == policy), None)
    if named is None:
        message = f"--policy: expected one of {', '.join(POLICIES)}, not {policy!r}"
        raise fail(message + suggestion(policy, POLICIES), exit_code=2)
    if not 0 < qps < float("inf"):
        raise fail(f"--qps: expected more than 0 queries per second, not {qps:g}", exit_code=2)
    if lists is not None and lists != DRAWN and read_lists(lists) is None:
        hint = f"as in '100000 zipf:0.9', or {DRAWN}"
        raise fail(f"--lists: expected a number and a law, not {lists!r}", hint=hint, exit_code=2)
    wanted = "" if lists == DRAWN else lists
    return ServiceLoad(qps, parse_time(latency, "--latency"), named, rows, wanted)


def _row(one: Service) -> dict[str, Any]:
    price = "unknown" if one.fleet.usd is None else f"{one.fleet.usd:,.0f}"
    return {
        "tables on": one.name,
        "query ms": f"{one.latency / 1e3:.2f}",
        "qps a host": f"{one.qps:,.0f}",
        "bound by": one.bound,
        "hosts": f"{one.fleet.hosts:,}",
        "kW": f"{one.fleet.watts / 1e3:,.1f}",
        "$": price,
    }


def _say(one: Service) -> None:
    """Say what lies on the slower tier."""
    if not one.moved:
        return
    hours = "unknown" if one.hours is None else f"at least {one.hours:.2g} h apart"
    many = f"{len(one.moved)} table{'s' * (len(one.moved) > 1)}"
    bags, lookups = "", "of their lookups"
    if one.pooled:
        size = f"{one.pooled_bytes / 1e9:,.3g} GB of {one.pooled:,} pooled bags of each"
        bags, lookups = f"{size} answer {one.pooled_hits:.1%} {lookups}; ", "of the others"
    cli.print_error(
        f"{one.name}: {many}, {one.moved_bytes / 1e9:,.3g} GB; {bags}"
        f"{one.cache_bytes / 1e9:,.3g} GB of cache answer {one.hits:.1%} {lookups}; "
        f"{one.reads:,.0f} reads a query, load {one.load:.0%}; rewrites of all: {hours}"
    )


class PlacementRequest(NamedTuple):
    """What is served: a model on hosts, under a load."""

    graph: Graph
    platform: Platform
    wanted: ServiceLoad
    options: PredictOptions
    what: str
    spread: bool = False

    def placed(self, graph: Graph, way: Service) -> Graph:
        """Return a step with its tables placed as a way has them."""
        from irgraph.serving.service import placed_model

        return placed_model(graph, self.platform, way, self.wanted, list(self.options.indices))


def _tradeoff(
    asked: PlacementRequest,
    formats: str,
    data: str | None,
    executed: str | None,
    budget: str,
    aim: str,
    output: str | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Show the front of accuracy and of what the service takes; write what keeps the budget."""
    from irgraph.diagnostics import fail
    from irgraph.precision.asked import read_budget, read_formats
    from irgraph.precision.candidates import TABLE, candidates
    from irgraph.precision.data import random_batch, read_data
    from irgraph.precision.measure import PrecisionBench
    from irgraph.tradeoff import AIMS, as_row, best_within_budget, tradeoff

    if aim not in AIMS:
        raise fail(f"--for: expected one of {', '.join(AIMS)}, not {aim!r}", exit_code=2)
    small = asked.graph if executed is None else cli.read_model(executed)
    held = random_batch(small) if data is None else read_data(data, small)
    known = [c for c in candidates(small, read_formats(formats, TABLE)) if c.kind == TABLE]
    bench = PrecisionBench(small, known, held, asked.options)
    limit = read_budget(budget, bench)
    points = tradeoff(
        bench, asked.graph, asked.platform, asked.wanted, asked.options, aim, spread=asked.spread
    )
    best = best_within_budget(points, limit)
    rows = [as_row(one) | {"chosen": one is best} for one in points]
    if output is not None:
        _write(asked, bench, best, output)
    if html is not None:
        _report(asked, bench, best, rows, (aim, limit), html)
    if as_json:
        cli.write_json({"data": held.source, "for": aim, "budget": limit, "points": rows})
        return
    print_rows(asked.what, [_cells(one, asked.wanted, one is best) for one in points if one.front])
    over = [one for one in points if one.sharded_plan is not None and not one.front]
    if over:
        print_rows(
            "sharded over devices, dominated by other plans",
            [_cells(one, asked.wanted, False) for one in over],
        )
    cli.print_error(f"data: {held.source}")
    cli.print_error(f"{len(points)} plans simulated; those on the Pareto front are shown")
    _uncounted(asked.graph, [one.service for one in points if one.front])


def _made(asked: PlacementRequest, bench: PrecisionBench, best: TradeoffPoint) -> Graph:
    """Return the model of a point, its tables in their formats and placed."""
    from irgraph.tradeoff import ServedFormatSearch

    return asked.placed(ServedFormatSearch(bench, asked.graph).rewritten(best.plan), best.service)


def _write(
    asked: PlacementRequest, bench: PrecisionBench, best: TradeoffPoint | None, output: str
) -> None:
    """Write the model of a point."""
    from irgraph.diagnostics import fail
    from irgraph.text import print_graph

    if best is None:
        raise fail("no plan is within the budget", exit_code=1)
    if best.sharded_plan is not None:
        _write_ranks(best.sharded_plan, output)
        return
    cli.write_result(print_graph(_made(asked, bench, best)), output)


def _report(
    asked: PlacementRequest,
    bench: PrecisionBench,
    best: TradeoffPoint | None,
    rows: Sequence[dict[str, Any]],
    aim: tuple[str, float],
    path: str,
) -> None:
    """Write the report of all points; ``aim`` is what was sought, and the budget in nats."""
    from irgraph.cli.html import write_page
    from irgraph.pages.placement import tradeoff_page
    from irgraph.predict.prediction import predict

    one = best if best is not None and best.sharded_plan is None else None
    query = None if one is None else predict(_made(asked, bench, one), asked.options)
    write_page(tradeoff_page(asked.what, bench.data.source, rows, *aim, query), path)


def _write_ranks(spread: ShardedPlan, folder: str) -> None:
    """Write the models of all ranks, their tables in their formats, and the plan."""
    from irgraph.text import print_graph

    Path(folder).mkdir(parents=True, exist_ok=True)
    for rank, made in enumerate(spread.models):
        cli.write_result(print_graph(made), str(Path(folder) / f"rank{rank}.ir"))
    cli.write_result(str(spread.plan), str(Path(folder) / "plan.json"))


def _cells(one: TradeoffPoint, wanted: ServiceLoad, chosen: bool) -> dict[str, Any]:
    """Return a point of the front as cells; tables of one format are counted."""
    way, counts = one.service, list(one.formats.values())
    kinds = ", ".join(f"{counts.count(to)} {to}" for to in dict.fromkeys(counts))
    return {
        "tables": kinds or "as they are",
        "KL": f"{one.kl:.2g}",
        "of entropy": f"{one.share:.2g}",
        "on": way.name,
        "hits": f"{way.hits:.1%}" if way.moved else "",
        "reads/s": f"{way.reads * wanted.qps:,.0f}" if way.moved else "",
        "step us": f"{way.step:,.0f}",
        "hosts": f"{way.fleet.hosts:,}",
        "kW": f"{way.fleet.watts / 1e3:,.2f}",
        "$": "unknown" if way.fleet.usd is None else f"{way.fleet.usd:,.0f}",
        "": "chosen" if chosen else "",
    }
