"""Shared code of commands: options, reading models, writing results."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from irgraph.capture.common.result import Capture
    from irgraph.ir.graph import Graph

PIPED_WIDTH = 160
"""Width of tables outside a terminal, in characters."""

_PLAIN_CELL = re.compile(r"[-+]?[\d.,]*(?:e[-+]?\d+)?[ %\w]{0,4}")
"""Pattern of a number with its sign and unit, or a dash."""

MAX_SIZE_DIGITS = 18
"""Maximum number of digits of a size, so that it fits into 64 bits."""

ProgramArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py[:NAME]",
        help="A training script, or a function in one: either of (batch, device), returning a "
        "step without arguments; or without arguments, returning a step or running a loop.",
    ),
]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A model.ir file, or -.")]
OutputOption = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Output file, written atomically (default: stdout).",
        callback=lambda path: writable_path(path),
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
CsvOption = Annotated[
    str | None,
    typer.Option(
        "--csv", metavar="FOLDER", help="Write each table as a CSV file into this folder instead."
    ),
]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="NAME|FILE", help="A shipped device sheet or a file.")
]
CardOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME|FILE",
        help="A device sheet (default: the card of the model's measured times, or that of capture "
        "--card, else v100).",
    ),
]
FormulasOption = Annotated[
    bool, typer.Option("--formulas", help="Ignore the times that a trace measured.")
]
TorchDeviceOption = Annotated[
    str, typer.Option("--device", help="A torch device: cpu, cuda, cuda:1.")
]
HostOption = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="NAME|FILE",
        help="A shipped host table, a file or db:NAME; NAME@1.5x: a host 1.5 times as fast; "
        "NAME@4.9us: one whose launches take 4.9 us; "
        "default: by the step's release of torch.",
    ),
]
DimOption = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Set the size of a dimension (repeatable)."),
]
RanksOption = Annotated[
    str | None,
    typer.Option(
        "--ranks", metavar="N|MxN", help="Ranks in collectives: 8, or 2x8 (machines x ranks)."
    ),
]
FabricOption = Annotated[
    str | None,
    typer.Option(
        "--fabric",
        metavar="NAME|FILE",
        help="Links between ranks: a100, h100, links.json (default: the device's).",
    ),
]
OtherArgument = Annotated[
    str, typer.Argument(metavar="OTHER", help="The model to compare with it.")
]
BatchOption = Annotated[int, typer.Option("--batch", min=1, help="Batch size of the step.")]
PlotOption = Annotated[
    str | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        help="Draw the figures here (needs matplotlib).",
        callback=lambda path: plot_path(path),
    ),
]
PassPathOption = Annotated[
    list[str] | None,
    typer.Option("--pass-path", metavar="FOLDER", help="Also look for passes here (repeatable)."),
]


def read_model(path: str) -> Graph:
    """Return the verified graph of a model file; name the format of a file that is not one."""
    from irgraph.api import load

    return load(path)


def read_typed_model(path: str) -> Graph:
    """Return the graph of a model to price, its types verified by torch, or else with a note."""
    from irgraph.api import load_typed

    graph, is_verified = load_typed(path)
    note_unverified_types(path, is_verified=is_verified)
    return graph


def note_unverified_types(path: str, *, is_verified: bool) -> None:
    """Print a note if torch could not verify the types of a model."""
    if not is_verified:
        print_error(f"note: types of {path} unverified, as torch is not installed")


def with_rank_options(graph: Graph, ranks: str | None, fabric: str | None) -> Graph:
    """Return the graph with the settings of ``--ranks`` and ``--fabric``."""
    if ranks is None and fabric is None:
        return graph
    from irgraph.predict.options import PredictOptions, apply_options

    return apply_options(graph, PredictOptions(ranks=ranks, fabric=fabric))


def with_dim_options(graph: Graph, dims: list[str] | None) -> Graph:
    """Return the graph with the sizes of ``--dim`` options."""
    if not dims:
        return graph
    from irgraph.diagnostics import fail, suggestion
    from irgraph.ir.resize import fixed_numbers, with_dims

    sizes: dict[str, int] = {}
    for item in dims:
        name, _, size = item.partition("=")
        if name not in graph.dims:
            dim_names = ", ".join(graph.dims) or "none"
            message = f"--dim: the model has no dimension {name!r}{suggestion(name, graph.dims)}"
            raise fail(message, hint=f"its dimensions: {dim_names}", exit_code=2)
        if not (size.isdecimal() and len(size) <= MAX_SIZE_DIGITS and int(size) >= 1):
            message = f"--dim {name}: give a whole number of at least 1, not {size!r}"
            if size.isdecimal() and len(size) > MAX_SIZE_DIGITS:
                message = f"--dim {name}: a size has at most {MAX_SIZE_DIGITS} digits, not {size!r}"
            raise fail(message, exit_code=2)
        sizes[name] = int(size)
    for note in (text for name in sizes for text in fixed_numbers(graph, name)):
        print_error(f"warning: not resized: {note}")
    try:
        return with_dims(graph, sizes)
    except ValueError as error:
        raise fail(f"--dim: {error}", exit_code=2) from None


def print_step_notes(graph: Graph, *hosts: str, software: str = "torch-2") -> None:
    """Print the notes of a model's capture, and a warning for each host that is not named."""
    from irgraph.ir.step_notes import step_notes
    from irgraph.overheads.default_host import default_host_note, host_of_step

    for note in step_notes(graph):
        print_error(f"note: {note}")
    for host in hosts:
        if note := default_host_note(host_of_step(host, graph, software)):
            print_error(f"warning: {note}")


def write_result(text: str, output: str | None) -> None:
    """Write a result atomically to a file, or to standard output."""
    if output is None or output == "-":
        sys.stdout.write(text)
        return
    from irgraph.files import write_atomic

    write_atomic(output, text)


def writable_path(output: Any) -> Any:  # noqa: ANN401  (text or a path)
    """Return the value of an output option, checked before any work: a callback of options."""
    from irgraph.files import check_writable

    check_writable(output)
    return output


def plot_path(path: Any) -> Any:  # noqa: ANN401  (text or nothing)
    """Return the value of a plot option, checked before any work: a callback of options."""
    from irgraph.report.plots import check_plot

    check_plot(writable_path(path))
    return path


def finite_value(value: float | None) -> float | None:
    """Return the value of an option that must be a finite number: a callback of options."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"must be finite, not {value}")
    return value


def write_json(value: Any) -> None:  # noqa: ANN401  (any JSON)
    """Print a value as JSON."""
    from irgraph.diagnostics import json_text

    sys.stdout.write(json_text(value, indent=2) + "\n")


def write_csv(tables: Mapping[str, Sequence[Mapping[str, Any]]], folder: str) -> None:
    """Write each table of records as ``NAME.csv``, with a header row and empty cells for ``None``.

    The file of a table without rows is empty, because its columns are unknown. Texts that
    spreadsheets would interpret as formulas are prefixed by an apostrophe.
    """
    import csv
    import io
    from pathlib import Path

    from irgraph.diagnostics import fail
    from irgraph.files import write_atomic

    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise fail(f"--csv: {error.strerror}: {folder}", exit_code=2) from None
    for name, rows in tables.items():
        buffer = io.StringIO(newline="")
        writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
        if rows:
            writer.writeheader()
            writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
        write_atomic(Path(folder) / f"{name}.csv", buffer.getvalue())


def _cell(value: Any) -> Any:  # noqa: ANN401  (any value of a record)
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    return value if _PLAIN_CELL.fullmatch(value) else f"'{value}"


def console(*, error: bool = False) -> Console:
    """Return a console for tables; in a pipe plain, and at least ``PIPED_WIDTH`` wide.

    ``COLUMNS`` can only increase the width in a pipe.
    """
    import os

    from irgraph.report.console import PlainConsole

    stream = sys.stderr if error else sys.stdout
    columns = os.environ.get("COLUMNS", "")
    if len(columns) > 5:  # not a valid width, but rich would use it
        del os.environ["COLUMNS"]
        columns = ""
    requested_width = int(columns) if columns.isdecimal() else 0
    piped_width = max(requested_width, PIPED_WIDTH)
    width = None if stream.isatty() else piped_width
    return PlainConsole(stderr=error, width=width, highlight=False, soft_wrap=False)


@contextmanager
def show_progress(message: str) -> Iterator[Callable[[str], None]]:
    """Show a progress message on a terminal, silent in a pipe; yield a function to change it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with console(error=True).status(message) as status:
        yield status.update


def print_error(message: str) -> None:
    """Print a message to standard error."""
    from irgraph.diagnostics import visible_text

    sys.stderr.write(visible_text(message) + "\n")


def print_capture_notes(captured: Capture) -> None:
    """Print repairs and assumptions of a front end, and ops that differ on the accelerator."""
    for line in captured.health:
        print_error(line)
    for note in captured.notes:
        print_error(f"note: {note}")
    for line in captured.differing:
        print_error(f"differs on the accelerator: {line}")


def print_listing(title: str, rows: list[dict[str, str]]) -> None:
    """Print rows as a table whose first column is never wrapped, or ``no TITLE`` without rows."""
    from rich.table import Table

    if not rows:
        print_error(f"no {title}")
        return
    first, *others = rows[0]
    table = Table(title=title, title_justify="left")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name)
    for row in rows:
        table.add_row(*row.values())
    console().print(table)
