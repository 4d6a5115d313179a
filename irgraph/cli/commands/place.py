"""``irgraph place``: where embedding tables of a service lie, and the hosts that it then takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli import common as cli
from irgraph.cli.traces import print_rows

if TYPE_CHECKING:
    from irgraph.serving.service import Service, Wanted

PANEL = "predict"

PolicyOption = Annotated[
    str, typer.Option("--policy", help="Which rows leave a full cache: lru, lfu, static.")
]


def place(
    model: cli.ModelArgument,
    platform: Annotated[
        str, typer.Option("--platform", metavar="NAME", help="A kind of host, or a .json file.")
    ],
    qps: Annotated[float, typer.Option("--qps", help="Queries a second; a step is one query.")],
    latency: Annotated[
        str, typer.Option("--latency", metavar="TIME", help="Mean time of a query, as in 100ms.")
    ],
    indices: Annotated[
        list[str] | None,
        typer.Option(metavar="[TABLE=]SPEC", help="Distribution of embedding indices."),
    ] = None,
    dim: cli.DimOption = None,
    policy: Annotated[
        str, typer.Option("--policy", help="Cache of rows: lru, lfu, static.")
    ] = "lru",
    rows: Annotated[
        bool, typer.Option("--rows", help="Reads ask for rows, not for whole blocks.")
    ] = False,
    output: cli.OutputOption = None,
    json: cli.JsonOption = False,
) -> None:
    """Search where tables of a step of inference lie on hosts with slower tiers of memory.

    Shows queries a second of a host under a latency limit, hosts, power and price of the fleet.
    """
    from irgraph.diagnostics import fail
    from irgraph.predict.options import PredictOptions
    from irgraph.serving.service import placed_model, services
    from irgraph.text import print_graph
    from irgraph.tiers.library import load_platform
    from irgraph.verbs.refusal import RefusedError

    graph = cli.with_dim_options(cli.read_model(model), dim)
    host = load_platform(platform)
    options = PredictOptions(device=host.device, host=host.host, indices=indices or ())
    wanted = _wanted(qps, latency, policy, rows)
    try:
        found = services(graph, host, wanted, options)
    except RefusedError as error:
        raise fail(f"the tables are not placed: {error.reason}") from None
    if output is not None:
        made = placed_model(graph, host, found[0], wanted, indices or ())
        cli.write_result(print_graph(made), output)
    if json:
        from msgspec import to_builtins

        cli.write_json([to_builtins(one) | {"latency_us": one.latency} for one in found])
        return
    print_rows(f"{host.name}: {qps:g} queries a second, {latency} each", list(map(_row, found)))
    for one in found:
        _say(one)


def _wanted(qps: float, latency: str, policy: str, rows: bool) -> Wanted:
    """Return what is asked of the service by the command's options."""
    from irgraph.diagnostics import fail, near
    from irgraph.predict.limits import parse_time
    from irgraph.serving.service import Wanted
    from irgraph.tiers.hits import POLICIES

    named = next((known for known in POLICIES if known == policy), None)
    if named is None:
        message = f"--policy: expected one of {', '.join(POLICIES)}, not {policy!r}"
        raise fail(message + near(policy, POLICIES), exit_code=2)
    if not 0 < qps < float("inf"):
        raise fail(f"--qps: queries a second are above zero, not {qps:g}", exit_code=2)
    return Wanted(qps, parse_time(latency, "--latency"), named, rows)


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
    cli.say(
        f"{one.name}: {len(one.moved)} tables, {one.moved_bytes / 1e9:,.1f} GB; "
        f"{one.cache_bytes / 1e9:,.1f} GB of cache answer {one.hits:.1%} of their lookups; "
        f"{one.reads:,.0f} reads a query, load {one.load:.0%}; rewrites of all: {hours}"
    )
