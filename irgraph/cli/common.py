"""What several commands share: options, reading models, writing results."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from irgraph.capture.common.result import Capture
    from irgraph.ir.graph import Graph

PIPED_WIDTH = 160
"""Characters in a line of a table that no terminal shows."""

DIGITS = 18
"""Digits of a size that still fits into 64 bits."""

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A model.ir file, or -.")]
OutputOption = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write here, whole or not.",
        callback=lambda path: writable(path),
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON in place of tables.")]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="NAME|FILE", help="A shipped device sheet or your own.")
]
CardOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME|FILE",
        help="A device sheet; by default the card of the model's measured times, or else v100.",
    ),
]
FormulasOption = Annotated[
    bool, typer.Option("--formulas", help="Leave out the times that a trace measured.")
]
TorchDeviceOption = Annotated[
    str, typer.Option("--device", help="A torch device: cpu, cuda, cuda:1.")
]
HostOption = Annotated[
    str, typer.Option("--host", metavar="NAME|FILE", help="A shipped host table or your own.")
]
DimOption = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Give a dimension another size (repeatable)."),
]
RanksOption = Annotated[
    str | None,
    typer.Option("--ranks", metavar="N|MxN", help="Ranks that take part in collectives: 8, 2x8."),
]
FabricOption = Annotated[
    str | None,
    typer.Option("--fabric", metavar="NAME", help="Links between ranks: a100, v100 (the device)."),
]
PassPathOption = Annotated[
    list[str] | None,
    typer.Option("--pass-path", metavar="FOLDER", help="Look for passes here too (repeatable)."),
]


def read_model(path: str) -> Graph:
    """Return the verified graph of a model file; say what else the file is if it is not one."""
    from irgraph.api import load

    return load(path)


def with_rank_options(graph: Graph, ranks: str | None, fabric: str | None) -> Graph:
    """Return the graph with the settings that ``--ranks`` and ``--fabric`` give."""
    if ranks is None and fabric is None:
        return graph
    from irgraph.predict.options import PredictOptions, prepared

    return prepared(graph, PredictOptions(ranks=ranks, fabric=fabric))


def with_dim_options(graph: Graph, dims: list[str] | None) -> Graph:
    """Return the graph with the sizes that ``--dim`` options give."""
    if not dims:
        return graph
    from irgraph.diagnostics import fail, near
    from irgraph.ir.resize import kept_sizes, with_dims

    sizes: dict[str, int] = {}
    for item in dims:
        name, _, size = item.partition("=")
        if name not in graph.dims:
            known = ", ".join(graph.dims) or "none"
            message = f"--dim: the model has no dimension {name!r}{near(name, graph.dims)}"
            raise fail(message, hint=f"its dimensions: {known}", exit_code=2)
        if not (size.isdecimal() and len(size) <= DIGITS and int(size) >= 1):
            message = f"--dim {name}: give a whole number of at least 1, not {size!r}"
            if size.isdecimal() and len(size) > DIGITS:
                message = f"--dim {name}: no size has more than {DIGITS} digits, {size!r} does"
            raise fail(message, exit_code=2)
        sizes[name] = int(size)
    for told in (note for name in sizes for note in kept_sizes(graph, name)):
        say(f"warning: not resized: {told}")
    try:
        return with_dims(graph, sizes)
    except ValueError as error:
        raise fail(f"--dim: {error}", exit_code=2) from None


def write_result(text: str, output: str | None) -> None:
    """Write a result to a file, whole or not at all, or to standard output."""
    if output is None or output == "-":
        sys.stdout.write(text)
        return
    from irgraph.files import write_atomic

    write_atomic(output, text)


def writable(output: Any) -> Any:  # noqa: ANN401  (text or a path)
    """Return the value of an output option, checked before any work: a callback of options."""
    from irgraph.files import check_writable

    check_writable(output)
    return output


def finite(value: float | None) -> float | None:
    """Return the value of an option that must be a finite number: a callback of options."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"must be finite, not {value}")
    return value


def write_json(value: Any) -> None:  # noqa: ANN401  (whatever JSON can hold)
    """Print a value as JSON."""
    import json

    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def console(*, error: bool = False) -> Console:
    """Return a console for tables; in a pipe plain and wide, wider if ``COLUMNS`` says so."""
    import os

    from irgraph.report.console import PlainConsole

    stream = sys.stderr if error else sys.stdout
    columns = os.environ.get("COLUMNS", "")
    piped = max(int(columns) if columns.isdecimal() else 0, PIPED_WIDTH)
    width = None if stream.isatty() else piped
    return PlainConsole(stderr=error, width=width, highlight=False, soft_wrap=False)


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is under way, until another thing is told; stay quiet where piped."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with console(error=True).status(what) as status:
        yield status.update


def say(message: str) -> None:
    """Tell the user something beside the result."""
    sys.stderr.write(message + "\n")


def tell(captured: Capture) -> None:
    """Tell what a front end repaired, what it assumed, and which ops differ on the accelerator."""
    for line in captured.health:
        say(line)
    for note in captured.notes:
        say(f"note: {note}")
    for line in captured.differing:
        say(f"differs on the accelerator: {line}")


def print_listing(title: str, rows: list[dict[str, str]]) -> None:
    """Print rows as a table whose first column is never broken, or that there are none."""
    from rich.table import Table

    if not rows:
        say(f"no {title}")
        return
    first, *others = rows[0]
    table = Table(title=title, title_justify="left")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name)
    for row in rows:
        table.add_row(*row.values())
    console().print(table)
