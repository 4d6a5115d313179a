"""``irgraph show``: what a model holds."""

from __future__ import annotations

from typing import Annotated

import typer

from irgraph.cli.common import JsonOption, ModelArgument, console, read_model, write_json

PANEL = "models"


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
