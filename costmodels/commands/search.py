"""``irgraph search``: the paper's search for the sizes of a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from costmodels.commands._training import (
    DataOption,
    FamilyArgument,
    family_named,
    folder_of,
    progress,
    require,
)
from irgraph.cli.common import JsonOption, console, print_error, writable_path, write_json

if TYPE_CHECKING:
    from costmodels.learnable.family import LearnedFamily
    from costmodels.learnable.measurements import Measurements
    from costmodels.training.table_search import BestModel

PANEL = "cost models"


def search(
    family: FamilyArgument,
    op: Annotated[str, typer.Option("--op", help="A measured op, such as linear.")],
    device: Annotated[str, typer.Option("--device", help="A measured device.")],
    data: DataOption = None,
    journal: Annotated[
        Path,
        typer.Option(
            "--journal",
            metavar="FILE",
            callback=writable_path,
            help="Journal of trials; an existing one is continued.",
        ),
    ] = Path("search.journal"),
    whole: Annotated[bool, typer.Option("--whole", help="Search the whole grid.")] = False,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds for each learning rate.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", callback=writable_path, help="Write the winner here."
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes, one core each.")] = 1,
    json: JsonOption = False,
) -> None:
    """Search the paper's grid (Table II) for one op on one device."""
    from irgraph.diagnostics import fail, suggestion

    chosen = family_named(family)
    folder = folder_of(data)
    require("jax", "flax", "optax", "optuna")
    from costmodels.training.recipe import read
    from costmodels.training.table_search import grid, winner

    rows, _ = read(family, folder)
    for kind, name, choices in (("op", op, chosen.ops), ("device", device, rows.devices)):
        if name not in choices:
            message = f"{family} was not measured for {kind} {name!r}{suggestion(name, choices)}"
            raise fail(message, hint=f"known: {', '.join(choices)}", exit_code=2)
    rows = rows.select(rows.rows_of(device) & (rows.op == chosen.ops.index(op)))
    with progress("searching", -(-len(grid()) // workers)) as advance:
        _search(rows, journal, seeds, whole, workers, lambda _: advance(1))
    best = winner(journal, full_grid=whole)
    if output is not None:
        _write_winner(rows, chosen, op, device, best, output, seeds=seeds, full_grid=whole)
    summary = {
        "best": dict(best.parameters),
        "held_out_pct": best.held_out.as_percent(),
        "finished": best.finished,
        "given_up": best.pruned,
        "trial_seconds": round(best.seconds, 1),
    }
    if json:
        write_json(summary)
        return
    for name, value in summary.items():
        console().print(f"{name}: {value}")


def _write_winner(
    rows: Measurements,
    family: LearnedFamily,
    op: str,
    device: str,
    best: BestModel,
    output: Path,
    *,
    seeds: int,
    full_grid: bool,
) -> None:
    """Train the winner again and write its weights."""
    from costmodels.learned.paper_net import PaperNet, save_paper
    from costmodels.training.table_search import train_winner

    stage = train_winner(rows, best, seeds=seeds, full_grid=full_grid)
    options = f"{' --whole' if full_grid else ''}{f' --seeds {seeds}' if seeds > 1 else ''}"
    metadata = {
        "command": f"irgraph search {family.name} --op {op} --device {device}{options} -o FILE",
        "parameters": {**best.parameters},
        "held_out_pct": stage.held_out.as_percent(),
        "finished": best.finished,
        "given_up": best.pruned,
        "trial_seconds": round(best.seconds, 1),
        "data": {f"kernels/{family.name}.csv.gz": rows.sha256},
    }
    save_paper(PaperNet(family, op, device, stage.layers, metadata), output)
    print_error(f"wrote {output}")


def _search(
    rows: Measurements,
    journal: Path,
    seeds: int,
    full_grid: bool,
    workers: int,
    advance: Callable[[str], None],
) -> None:
    """Search in this process and in further processes that share the journal."""
    from functools import partial
    from multiprocessing import get_context

    from costmodels.training.table_search import search as run
    from irgraph.diagnostics import fail

    parts = [
        partial(run, rows, journal, seeds=seeds, full_grid=full_grid, part=(number, workers))
        for number in range(workers)
    ]
    others = [get_context("spawn").Process(target=part) for part in parts[1:]]
    for process in others:
        process.start()
    parts[0](progress=advance)
    for process in others:
        process.join()
        if process.exitcode:
            raise fail(f"a worker ended with {process.exitcode}", hint="start the search again")
