"""``irgraph opt``: transform a model with passes and scripts."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from irgraph.cli.common import (
    DimOption,
    ModelArgument,
    OutputOption,
    PassPathOption,
    read_model,
    say,
    with_dim_options,
    write_result,
)

ORDER = "irgraph.order"
STEPS = {"pass_": "pass", "text": "text", "script": "script"}


class PipelineCommand(TyperCommand):
    """A command that remembers the order in which ``--pass``, ``-e`` and ``-s`` were given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Note the order of options, then parse as usual."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[ORDER] = [parameter.name for parameter in order]
        return super().parse_args(ctx, args)


def opt(
    ctx: typer.Context,
    model: ModelArgument,
    pass_: Annotated[
        list[str] | None,
        typer.Option("--pass", metavar="PIPELINE", help="Passes: 'a, b(x=1)' (repeatable)."),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option("-e", metavar="SCRIPT", help="Statements, as text (repeatable)."),
    ] = None,
    script: Annotated[
        list[str] | None,
        typer.Option("-s", "--script", metavar="FILE", help="A script file (repeatable)."),
    ] = None,
    pass_path: PassPathOption = None,
    dim: DimOption = None,
    output: OutputOption = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No report.")] = False,
) -> None:
    """Apply passes and scripts in the order given; print the new model, report what changed."""
    from irgraph.manager import Step, run_steps
    from irgraph.text import print_graph

    graph = with_dim_options(read_model(model), dim)
    given = {"pass_": iter(pass_ or ()), "text": iter(text or ()), "script": iter(script or ())}
    order = [name for name in ctx.meta.get(ORDER, ()) if name in given]
    steps = [Step(STEPS[name], next(given[name])) for name in order]
    outcome = run_steps(graph, steps, pass_path=tuple(pass_path or ()))
    if not quiet:
        for line in outcome.report_lines():
            say(line)
    write_result(print_graph(outcome.graph), output)
