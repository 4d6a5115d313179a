"""Shared options of commands that run pipelines; their order is significant."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from irgraph.ir.graph import Graph
    from irgraph.manage.stage import PipelineStep, Stage

OPTION_ORDER_KEY = "irgraph.order"
PRINT_AFTER_OPTION = "--print-after"
"""Option that selects all steps if it has no ``=``."""

STEP_SOURCES = {"pass_": ("pass", "--pass"), "text": ("text", "-e"), "script": ("script", "")}
"""Kind of step and its source in messages, by parameter."""

PassOption = Annotated[
    list[str] | None,
    typer.Option("--pass", metavar="PIPELINE", help="Passes: 'a, b(x=1)' (repeatable)."),
]
TextOption = Annotated[
    list[str] | None,
    typer.Option("-e", metavar="SCRIPT", help="Statements, as text (repeatable)."),
]
ScriptOption = Annotated[
    list[str] | None,
    typer.Option("-s", "--script", metavar="FILE", help="A script file (repeatable)."),
]


class PipelineCommand(TyperCommand):
    """A command that records the order of ``--pass``, ``-e`` and ``-s``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Record the order of options in ``ctx.meta``, then parse them."""
        args = [f"{arg}=all" if arg == PRINT_AFTER_OPTION else arg for arg in args]
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[OPTION_ORDER_KEY] = [parameter.name for parameter in order]
        return super().parse_args(ctx, args)


def steps_of(
    ctx: typer.Context,
    passes: Sequence[str] | None,
    texts: Sequence[str] | None,
    scripts: Sequence[str] | None,
) -> list[PipelineStep]:
    """Return the steps of a command line in order."""
    from irgraph.manage.stage import PipelineStep

    values_by_option = {
        "pass_": iter(passes or ()),
        "text": iter(texts or ()),
        "script": iter(scripts or ()),
    }
    order = [name for name in ctx.meta.get(OPTION_ORDER_KEY, ()) if name in values_by_option]
    steps = []
    for name in order:
        kind, source = STEP_SOURCES[name]
        steps.append(PipelineStep(kind, next(values_by_option[name]), source))
    return steps


def load_pipeline(
    ctx: typer.Context,
    model: str,
    dim: list[str] | None,
    steps: tuple[Sequence[str] | None, Sequence[str] | None, Sequence[str] | None],
    ranks: tuple[str | None, str | None] = (None, None),
) -> tuple[Graph, list[Stage]]:
    """Return the model of a command line, resized, with its ranks, and its pipeline's stages."""
    from irgraph.cli.common import read_model, with_dim_options, with_rank_options
    from irgraph.manage.stage import stages

    pipeline = stages(steps_of(ctx, *steps))
    return with_rank_options(with_dim_options(read_model(model), dim), *ranks), pipeline


def print_table(
    title: str, rows: Sequence[Mapping[str, str]], stream: TextIO, caption: str = ""
) -> None:
    """Print rows as a table, with columns of numbers right-aligned."""
    from rich.table import Table

    from irgraph.cli.common import console

    if not rows:
        return
    table = Table(title=title, caption=caption or None)
    table.title_justify = table.caption_justify = "left"
    for name in rows[0]:
        texts = [row[name].strip("+-%").replace(".", "0") for row in rows if row[name]]
        is_numeric = all(map(str.isdecimal, texts))
        table.add_column(name, justify="right" if is_numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row.values())
    console(error=stream is sys.stderr).print(table)
