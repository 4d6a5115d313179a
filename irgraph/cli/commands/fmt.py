"""``irgraph fmt``: the canonical layout."""

from __future__ import annotations

from typing import Annotated

import typer

from irgraph.cli.common import ModelArgument, OutputOption, write_result

PANEL = "models"


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
