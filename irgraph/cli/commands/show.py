"""``irgraph show``: summary of a model."""

from __future__ import annotations

from typing import Annotated

import typer

from irgraph.cli import common as cli

PANEL = "models"

SvgOption = Annotated[
    str | None,
    typer.Option(
        "--svg",
        metavar="FILE",
        help="Draw its outermost ops here instead (needs Graphviz).",
        callback=lambda path: cli.writable_path(path),
    ),
]


def show(
    model: cli.ModelArgument,
    depth: Annotated[int, typer.Option(min=1, help="Levels of nesting to count.")] = 1,
    svg: SvgOption = None,
    module: Annotated[
        str | None, typer.Option(metavar="PATH", help="Draw this module and those in it.")
    ] = None,
    phase: Annotated[
        str | None, typer.Option(help="Draw one phase: forward, backward or optimizer.")
    ] = None,
    json: cli.JsonOption = False,
) -> None:
    """Summarise a model: dimensions, parameters, and its ops by name."""
    from irgraph.report.summary import summarize, summary_tables

    graph = cli.read_model(model)
    if svg is not None:
        from irgraph.exchange.drawing import select_ops, write_svg

        write_svg(graph, select_ops(graph, module, phase), svg)
        return
    if module is not None or phase is not None:
        from irgraph.diagnostics import fail

        raise fail("--module and --phase choose what --svg draws", exit_code=2)
    summary = summarize(graph, depth)
    if json:
        cli.write_json(summary)
        return
    out = cli.console()
    for table in summary_tables(summary):
        out.print(table)
