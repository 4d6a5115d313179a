"""``irgraph sweep``: a step at many sizes, on many devices and hosts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli.common import (
    JsonOption,
    ModelArgument,
    console,
    print_error,
    print_listing,
    print_step_notes,
    read_typed_model,
    write_json,
)
from irgraph.cli.traces import record_cells

if TYPE_CHECKING:
    from irgraph.sweep.grid import Grid
    from irgraph.sweep.run import Engine, SweepOutcome

PANEL = "predict"


def sweep(
    model: ModelArgument,
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            metavar="FOLDER",
            help="Folder for Parquet files; an unfinished sweep resumes.",
        ),
    ],
    dim: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SIZES", help="64,128 or 64:4096:64 (repeatable)."),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME,…", help="Device sheets.")] = "v100",
    host: Annotated[str, typer.Option(metavar="NAME,…", help="Host tables.")] = "default",
    mode: Annotated[str, typer.Option(help="As for predict.")] = "corrected",
    software: Annotated[str, typer.Option(help="As for predict.")] = "torch-2",
    accounting: Annotated[str, typer.Option(help="As for predict.")] = "blocking",
    weights: Annotated[
        list[str] | None, typer.Option(metavar="FILE|db:NAME", help="As for predict.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0, max=1024, help="Processes (default: one per core); 0: only this one, no Dask."
        ),
    ] = None,
    scheduler: Annotated[
        str,
        typer.Option(
            metavar="tcp://…",
            help="Use this Dask scheduler instead of local processes; it exchanges pickles, which "
            "runs its code.",
        ),
    ] = "",
    dashboard: Annotated[
        str, typer.Option(metavar=":PORT", help="Dask dashboard of local processes (needs bokeh).")
    ] = "",
    chunk: Annotated[int, typer.Option(min=1, max=10**7, help="Variants per chunk.")] = 4000,
    best: Annotated[int, typer.Option(min=1, max=1000, help="Shortest steps to list.")] = 10,
    json: JsonOption = False,
) -> None:
    """Predict a step at all sizes on all devices and hosts, into Parquet files."""
    from irgraph.sweep.grid import Grid, parse_dims
    from irgraph.sweep.run import Engine

    grid = Grid(
        parse_dims(dim or []),
        _names(device),
        _names(host),
        mode,
        software,
        accounting,
        tuple(weights or ()),
        chunk,
    )
    worker_count = (os.cpu_count() or 1) if workers is None else workers
    outcome = _run_sweep(model, grid, output, Engine(worker_count, scheduler, dashboard))
    for path in outcome.results.damaged:
        print_error(f"{path}: damaged, changed or of other points: computed again")
    _show(grid.variants, outcome, best, output, json)


def _show(variants: int, outcome: SweepOutcome, best: int, output: str, json: bool) -> None:
    """Print the shortest steps, and how many variants are refused."""
    fastest, refused = outcome.results.fastest(best)
    if json:
        figures = {
            "variants": variants,
            "refused": refused,
            "chunks": outcome.computed,
            "chunks_known": outcome.existing,
            "fastest": fastest,
        }
        write_json(figures)
        return
    print_listing("shortest steps", [record_cells(row) for row in fastest])
    chunks = outcome.computed + outcome.existing
    resumed_text = f"; {outcome.existing} of {chunks} chunks were done before"
    print_error(f"{variants:,} variants in {output}{resumed_text * bool(outcome.existing)}")
    if refused:
        print_error(f"{refused:,} of them are refused: the column 'refused' says why")


def _run_sweep(model: str, grid: Grid, output: str, engine: Engine) -> SweepOutcome:
    """Run the sweep with progress on a terminal."""
    from importlib.metadata import version

    from rich.progress import Progress

    from irgraph.ir.resize import unresized_warnings
    from irgraph.sweep.run import sweep as run

    out = console(error=True)
    with Progress(console=out, disable=not out.is_terminal, transient=True) as bar:
        task = bar.add_task("pricing", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        graph: Any = read_typed_model(model)
        sizes = [{name: size} for name, values in grid.dims.items() for size in values]
        for line in unresized_warnings(graph, *sizes):
            print_error(f"warning: {line}")
        print_step_notes(graph, *grid.hosts, software=grid.software)
        return run(graph, grid, output, engine, version=version("irgraph"), progress=show)


def _names(text: str) -> tuple[str, ...]:
    """Return the distinct names of a comma-separated list."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise typer.BadParameter("give at least one name")
    return names
