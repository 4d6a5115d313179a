"""``irgraph plan``: search for sharding plans of embedding tables with a fast slowest rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli import common as cli
from irgraph.cli.html import HtmlOption
from irgraph.cli.traces import print_rows

if TYPE_CHECKING:
    from irgraph.planning.plans import PlanResult

PANEL = "predict"


def plan(
    model: cli.ModelArgument,
    ranks: Annotated[int, typer.Option("--ranks", min=1, max=1024, help="Number of ranks.")],
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="Memory of each device, as in 40GiB.")
    ],
    device: cli.CardOption = None,
    host: cli.HostOption = "default",
    dim: cli.DimOption = None,
    fabric: cli.FabricOption = None,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0, max=3600, help="Duration of the search, in seconds."),
    ] = 30.0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the search.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Simulate only the plan that the search finds.")
    ] = False,
    models: Annotated[
        str | None,
        typer.Option("--models", metavar="FOLDER", help="Write the models of all ranks here."),
    ] = None,
    output: cli.OutputOption = None,
    html: HtmlOption = None,
    json: cli.JsonOption = False,
) -> None:
    """Search for a plan of embedding tables over ranks, and compare it with greedy sharders."""
    from irgraph.diagnostics import fail
    from irgraph.diagnostics.quantities import parse_bytes
    from irgraph.planning.plans import best_of, plans_of
    from irgraph.predict.options import PredictOptions
    from irgraph.predict.ranks import collective_notes
    from irgraph.text import print_graph
    from irgraph.verbs.refusal import RefusedError

    graph = cli.with_dim_options(cli.read_typed_model(model), dim)
    options = PredictOptions(device=device, host=host, fabric=fabric)
    size = parse_bytes(memory, "--memory")
    try:
        results = plans_of(
            graph, ranks, size, options, seed=seed, seconds=seconds, with_baselines=not quick
        )
    except RefusedError as error:
        raise fail(f"the step is not sharded: {error.reason}") from None
    best = best_of(results)
    if models is not None:
        for rank, rank_model in enumerate(best.models):
            Path(models).mkdir(parents=True, exist_ok=True)
            cli.write_result(print_graph(rank_model), str(Path(models) / f"rank{rank}.ir"))
    if output is not None:
        cli.write_result(str(best.plan), output)
    lines = collective_notes(best.predictions)
    if html is not None:
        from irgraph.cli.html import write_page
        from irgraph.pages.ranks import plan_page

        write_page(
            plan_page(graph.name, results, [_figures(result) for result in results], lines), html
        )
    _show(results, lines, output, json)


def _show(results: list[PlanResult], lines: list[str], output: str | None, as_json: bool) -> None:
    """Print a row for each plan, the fastest first, and the plan if it is not written."""
    rows = [_figures(result) for result in results]
    if as_json:
        from msgspec import to_builtins

        plan, coverage = to_builtins(results[0].plan), results[0].coverage
        cli.write_json({"plan": plan, "tried": rows, "coverage": coverage, "rests_on": lines})
        return
    from irgraph.pages.ranks import INTERVALS

    print_rows("plans", [{k: _cell(k, v) for k, v in row.items()} for row in rows])
    shares = ", ".join(
        f"{share:.1%} {provenance}" for provenance, share in results[0].coverage.items()
    )
    cli.print_error(f"device time of the first plan: {shares}")
    cli.print_error(INTERVALS)
    for line in lines:
        cli.print_error(line)
    if output is None:
        cli.print_error(str(results[0].plan).rstrip())


def _figures(result: PlanResult) -> dict[str, Any]:
    return {
        "plan": result.name,
        "step_us": result.step_time,
        "interval_us": list(result.interval),
        "tables_us": result.cost,
        "imbalance": result.imbalance,
        "exposed_us": max(result.ranks.exposed),
        "waits_us": max(result.ranks.waiting),
        "memory_mib": max(result.memory) / 2**20,
    }


def _cell(name: str, value: float | str | list[float]) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " to ".join(f"{end:.1f}" for end in value)
    return f"{value:.2f}" if name == "imbalance" else f"{value:.1f}"
