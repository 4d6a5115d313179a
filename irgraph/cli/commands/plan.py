"""``irgraph plan``: search for a plan of embedding tables, or for a layout of a step over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli import common as cli
from irgraph.cli.html import HtmlOption
from irgraph.cli.traces import print_rows

if TYPE_CHECKING:
    from irgraph.ir.graph import Graph
    from irgraph.planning.plans import PlanResult
    from irgraph.plans.plan import Plan
    from irgraph.predict.options import PredictOptions

PANEL = "predict"

MAX_RANKS = 1024
"""Maximum number of ranks of a search."""


class Subject(StrEnum):
    """Subject of a plan: embedding tables, or a whole step."""

    TABLES = "tables"
    LAYOUTS = "layouts"


def plan(
    model: cli.ModelArgument,
    ranks: Annotated[
        str,
        typer.Option(
            "--ranks", metavar="N|MxN", help="Number of ranks: 8, or 2x8 (machines x ranks)."
        ),
    ],
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Memory of each device, as in 40GiB (default: its own).",
        ),
    ] = None,
    device: cli.CardOption = None,
    host: cli.HostOption = "default",
    dim: cli.DimOption = None,
    fabric: cli.FabricOption = None,
    subject: Annotated[
        Subject | None,
        typer.Option(
            "--of",
            help="Place embedding tables, or search layouts of the step (default: tables, if the "
            "model has embedding bags).",
        ),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, max=1000, help="Number of layouts to print.")
    ] = 5,
    overlap: Annotated[
        bool,
        typer.Option(
            "--overlap",
            help="Run collectives of data ranks on a separate stream, as FSDP does.",
        ),
    ] = False,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0, max=3600, help="Duration of the search of tables."),
    ] = 30.0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the search of tables.")] = 0,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Simulate only the plan that the search of tables finds."),
    ] = False,
    models: Annotated[
        str | None,
        typer.Option("--models", metavar="FOLDER", help="Write the models of all ranks here."),
    ] = None,
    output: cli.OutputOption = None,
    html: HtmlOption = None,
    json: cli.JsonOption = False,
) -> None:
    """Search for a plan of embedding tables, or for the fastest layout of a step over ranks."""
    from irgraph.diagnostics import fail
    from irgraph.diagnostics.quantities import parse_bytes
    from irgraph.ir.ranks import read_layout
    from irgraph.predict.options import PredictOptions
    from irgraph.verbs.sharding.embeddings.tables import table_sizes

    graph = cli.with_dim_options(cli.read_typed_model(model), dim)
    count = read_layout(ranks).ranks
    if count > MAX_RANKS:
        raise fail(f"--ranks: a plan is searched for at most {MAX_RANKS} ranks", exit_code=2)
    options = PredictOptions(
        device=device, host=host, fabric=fabric, ranks=None if ranks.isdecimal() else ranks
    )
    size = parse_bytes(memory, "--memory") if memory is not None else _card_memory(graph, options)
    chosen = subject or (Subject.TABLES if table_sizes(graph) else Subject.LAYOUTS)
    if chosen == Subject.TABLES and not table_sizes(graph):
        hint = "leave out --of to search layouts of the step"
        raise fail("--of tables: the model has no embedding bags", hint=hint, exit_code=2)
    if chosen == Subject.TABLES:
        outputs = _Outputs(models, output, html, json)
        _plan_tables(graph, count, size, options, seed, seconds, quick, outputs)
        return
    if html is not None:
        raise fail("--html: a page shows plans of tables, not layouts", exit_code=2)
    outputs = _Outputs(models, output, html, json)
    _plan_layouts(graph, count, size, options, top, overlap, outputs)


@dataclass(frozen=True)
class _Outputs:
    """Files to write, and whether to print JSON."""

    models: str | None
    output: str | None
    html: str | None
    as_json: bool


def _card_memory(graph: Graph, options: PredictOptions) -> float:
    """Return the memory of the card in bytes."""
    from irgraph.backend import backend
    from irgraph.predict.prediction import device_of

    return float(backend().device(options.device or device_of(graph), graph).memory_bytes)


def _plan_tables(
    graph: Graph,
    ranks: int,
    memory: float,
    options: PredictOptions,
    seed: int,
    seconds: float,
    quick: bool,
    outputs: _Outputs,
) -> None:
    """Search for a plan of tables, and write and print it."""
    from irgraph.diagnostics import fail
    from irgraph.planning.plans import best_of, plans_of
    from irgraph.predict.ranks import collective_notes
    from irgraph.verbs.refusal import RefusedError

    try:
        results = plans_of(
            graph, ranks, memory, options, seed=seed, seconds=seconds, with_baselines=not quick
        )
    except RefusedError as error:
        raise fail(f"the step is not sharded: {error.reason}") from None
    best = best_of(results)
    _write(best.plan, best.models, outputs)
    lines = collective_notes(best.predictions)
    if outputs.html is not None:
        from irgraph.cli.html import write_page
        from irgraph.pages.ranks import plan_page

        figures = [_figures(result) for result in results]
        write_page(plan_page(graph.name, results, figures, lines), outputs.html)
    _show(results, lines, outputs.output, outputs.as_json)


def _plan_layouts(
    graph: Graph,
    ranks: int,
    memory: float,
    options: PredictOptions,
    top: int,
    overlap: bool,
    outputs: _Outputs,
) -> None:
    """Search for the fastest layout, and write and print it."""
    from irgraph.cli.layout_plans import exclusions, layouts_json, show_layouts
    from irgraph.diagnostics import fail
    from irgraph.planning.layouts.overlap import with_overlap
    from irgraph.planning.layouts.search import search_layouts
    from irgraph.verbs.sharding.shard import shard

    with cli.show_progress("layouts") as progress:
        search = search_layouts(
            graph, ranks, options, memory, max_results=top, overlap=overlap, progress=progress
        )
    if not search.results:
        for line in exclusions(search, memory):
            cli.print_error(line)
        raise fail("no layout fits into memory, or none can be sharded", exit_code=1)
    best = search.results[0]
    models = []
    if outputs.models is not None:
        models = [shard(best.step, best.plan, rank).graph for rank in range(ranks)]
        models = [with_overlap(model) for model in models] if overlap else models
    _write(best.plan, models, outputs)
    if outputs.as_json:
        cli.write_json({"overlap": overlap, **layouts_json(search, memory, top)})
    else:
        show_layouts(search, memory, top, outputs.output, overlap=overlap)


def _write(plan: Plan, models: Sequence[Graph], outputs: _Outputs) -> None:
    """Write the models of all ranks and the plan, if files are named."""
    from irgraph.text import print_graph

    if outputs.models is not None:
        folder = Path(outputs.models)
        folder.mkdir(parents=True, exist_ok=True)
        for rank, model in enumerate(models):
            cli.write_result(print_graph(model), str(folder / f"rank{rank}.ir"))
    if outputs.output is not None:
        cli.write_result(str(plan), outputs.output)


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
