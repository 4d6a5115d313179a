"""``irgraph check``: run two models on the same values and compare their live-out tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import asdict

from irgraph.cli import common as cli
from irgraph.diagnostics import visible_text

if TYPE_CHECKING:
    from rich.table import Table

    from irgraph.execute import Comparison
    from irgraph.ir.graph import Graph

PANEL = "transform"

MAX_DIFFERING_ROWS = 12
"""Maximum number of differing tensors in the table, the worst first, unless ``--all``."""

SizesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dim", metavar="NAME=SIZE", help="Run at this size (repeatable; default: 8, 5 and 3)."
    ),
]
AfterArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="AFTER...",
        help="The transformed model; or the models of all ranks of the step, in order.",
    ),
]
ProgramOption = Annotated[
    str | None,
    typer.Option(
        "--program",
        metavar="FILE.py:NAME",
        help="Capture this at AFTER's batch size; compare MODEL, resized to that size, with it.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of both models' initial values.")]


def check(
    before: cli.ModelArgument,
    after: AfterArgument,
    dim: SizesOption = None,
    seed: SeedOption = 0,
    rows: Annotated[
        int,
        typer.Option(
            "--rows", min=1, help="Cut embedding tables to this many rows where memory is short."
        ),
    ] = 1000,
    limit: Annotated[
        float,
        typer.Option(
            "--limit", min=0, callback=cli.finite_value, help="Memory limit of each model, GiB."
        ),
    ] = 2.0,
    draws: Annotated[
        int, typer.Option("--draws", min=1, help="How many times to draw values.")
    ] = 8,
    narrow: Annotated[
        bool,
        typer.Option("--narrow", help="Compute in the types as given (f32, f16 …), not in f64."),
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Show every tensor, not just those that differ most.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with 3 if no draw reached some branch, so that it is unchecked."
        ),
    ] = False,
    program: ProgramOption = None,
    json: cli.JsonOption = False,
) -> None:
    """Run two models with torch on the same values; compare every tensor that leaves the step.

    The models of several ranks run together, in this process.
    """
    from irgraph.execute import compare, compare_ranks

    first, (second, *others) = cli.read_model(before), list(map(cli.read_model, after))
    if others:
        result = compare_ranks(
            first,
            [second, *others],
            seed=seed,
            dims=sizes(dim),
            limit=int(limit * 2**30),
            widen=not narrow,
            draws=draws,
        )
        _show(result, "", every, json)
        if strict and result.where_exercised:
            raise typer.Exit(3)
        return
    differs = program_difference(first, second, program) if program else ""
    result = compare(
        first,
        second,
        seed=seed,
        dims=sizes(dim),
        rows=rows,
        limit=int(limit * 2**30),
        widen=not narrow,
        draws=draws,
    )
    difference = differs or "as the program captured anew, call by call"
    about = f"{first.name} at B = {second.dims.get('B')}: {difference}" if program else ""
    _show(result, about, every, json, {"program": differs or "same"} if program else {})
    if differs:
        raise typer.Exit(1)
    if strict and result.where_exercised:
        raise typer.Exit(3)


def _show(
    result: Comparison,
    about: str,
    all_tensors: bool,
    json: bool,
    more: dict[str, str] | None = None,
) -> None:
    """Print a comparison; exit with 1 if the models differ."""
    if json:
        cli.write_json(as_json(result) | (more or {}))
    else:
        typer.echo(visible_text("\n".join(filter(None, (str(result), about)))))
        if all_tensors or not all(tensor.same for tensor in result.compared):
            cli.console().print(table(result, all_tensors=all_tensors))
    if not result.same:
        raise typer.Exit(1)


def program_difference(before: Graph, after: Graph, program: str) -> str:
    """Return the difference between a model and its program at the other model's batch size.

    Returns ``""`` if they do not differ.
    """
    from irgraph.capture.live.recapture import compare_with_program
    from irgraph.ir.dim import BATCH

    return compare_with_program(before, program, after.dims.get(BATCH, before.dims.get(BATCH, 1)))


def sizes(options: list[str] | None) -> dict[str, int]:
    """Return the sizes of ``--dim`` options."""
    from irgraph.diagnostics import fail

    result = {}
    for item in options or ():
        name, _, size = item.partition("=")
        if not size.isdecimal() or len(size) > cli.MAX_SIZE_DIGITS or int(size) < 1:
            message = f"--dim {name}: give a whole number of at least 1, not {size!r}"
            raise fail(message, exit_code=2)
        result[name] = int(size)
    return result


def as_json(result: Comparison) -> dict[str, Any]:
    """Return a comparison as plain values."""
    return {
        "same": result.same,
        "where_exercised": result.where_exercised,
        "unexercised": list(result.unexercised),
        "elementwise": result.elementwise,
        "exact": result.exact,
        "precision": dict(zip(("type", "tolerance"), result.precision, strict=True)),
        "compared": [{**asdict(tensor), "same": tensor.same} for tensor in result.compared],
        "only_before": [list(pair) for pair in result.only_before],
        "only_after": [list(pair) for pair in result.only_after],
        "lost": result.lost,
        "notes": list(result.notes),
        "coverage": asdict(result.coverage),
    }


def table(result: Comparison, *, all_tensors: bool = False) -> Table:
    """Return a table of the differing tensors, the worst first, or of all tensors."""
    from rich.table import Table

    columns = ("tensor", "kind", "type", "difference", "of its change", "allowed", "")
    tensor_table = Table(*columns, title="what leaves the step", title_justify="left")
    worst = sorted(result.compared, key=lambda tensor: (tensor.same, -tensor.relative))
    differing = [tensor for tensor in worst if not tensor.same]
    for tensor in worst if all_tensors else differing[:MAX_DIFFERING_ROWS]:
        label = f"%{tensor.name}" + (f' "{tensor.label}"' if tensor.label else "")
        figures = (f"{tensor.absolute:.3g}", f"{tensor.relative:.3g}", f"{tensor.allowed:.3g}")
        tensor_table.add_row(
            label, tensor.kind, tensor.type, *figures, "same" if tensor.same else "differs"
        )
    counts = (
        (len(differing) - MAX_DIFFERING_ROWS, "differ"),
        (len(worst) - len(differing), "are the same"),
    )
    omitted = ", ".join(f"{count} more {state}" for count, state in counts if count > 0)
    if omitted and not all_tensors:
        tensor_table.caption = f"{omitted} (--all shows them)"
        tensor_table.caption_justify = "left"
    return tensor_table
