"""``irgraph show``, ``verify`` and ``fmt``: look at models."""

from __future__ import annotations

from typing import Annotated

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
    findings = find(graph)
    for finding in findings:
        say(describe(graph, finding))
    count = sum(1 for _ in graph.walk())
    say(f"{model}: {count} ops, {len(findings) or 'no'} finding{'s' * (len(findings) != 1)}")
    raise typer.Exit(1 if findings else 0)


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
