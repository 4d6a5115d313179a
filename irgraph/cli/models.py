"""``irgraph show``, ``verify`` and ``fmt``: look at models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from irgraph.cli.common import (
    JsonOption,
    ModelArgument,
    OutputOption,
    console,
    read_model,
    say,
    write_json,
    write_result,
)

if TYPE_CHECKING:
    from irgraph.ir.graph import Graph
    from irgraph.ir.verify import Finding


def show(
    model: ModelArgument,
    depth: Annotated[int, typer.Option(min=1, help="Levels of nesting to count.")] = 1,
    json: JsonOption = False,
) -> None:
    """Summarise a model: dimensions, parameters, and its ops by name."""
    from irgraph.report.summary import summarize, summary_tables

    summary = summarize(read_model(model), depth)
    if json:
        write_json(summary)
        return
    out = console()
    for table in summary_tables(summary):
        out.print(table)


def verify(model: ModelArgument) -> None:
    """Check a model against every rule of the IR; all findings are listed."""
    from irgraph.api import read_graph
    from irgraph.ir.verify import describe
    from irgraph.ir.verify import verify as find

    graph = read_graph(model)
    findings = [*find(graph), *_unknown_sheets(graph)]
    for finding in findings:
        say(describe(graph, finding))
    count = sum(1 for _ in graph.walk())
    say(f"{model}: {count} ops, {len(findings) or 'no'} finding{'s' * (len(findings) != 1)}")
    raise typer.Exit(1 if findings else 0)


def _unknown_sheets(graph: Graph) -> Iterator[Finding]:
    """Yield a finding for each device that stands for a card which nobody knows."""
    from costmodels.sheet import load_device
    from irgraph.ir.verify import Finding
    from irgraph.text.diagnostics import IrgraphError

    for device in graph.devices:
        try:
            load_device(device.sheet)
        except IrgraphError as error:
            yield Finding("devices", f"@{device.name}: {error.diagnostics[0].message}")


def fmt(
    model: ModelArgument,
    output: OutputOption = None,
    in_place: Annotated[bool, typer.Option("-i", "--in-place", help="Rewrite the file.")] = False,
) -> None:
    """Print a model in the canonical layout."""
    from irgraph.api import read_graph
    from irgraph.text import print_graph

    text = print_graph(read_graph(model))
    write_result(text, model if in_place else output)
