"""``irgraph bisect``: search for the stage of a pipeline that breaks a model."""

from __future__ import annotations

from typing import Annotated

import typer

from irgraph.cli import common as cli
from irgraph.cli.pipeline import (
    PassOption,
    PipelineCommand,
    ScriptOption,
    TextOption,
    load_pipeline,
)

PANEL = "transform"
COMMAND = PipelineCommand


def bisect(
    ctx: typer.Context,
    model: cli.ModelArgument,
    pass_: PassOption = None,
    text: TextOption = None,
    script: ScriptOption = None,
    pass_path: cli.PassPathOption = None,
    dim: cli.DimOption = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE=BOUND", help="A prediction above this counts as broken: step.time=9ms."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Different results when run with torch count as broken.")
    ] = False,
    device: cli.DeviceOption = "v100",
    host: cli.HostOption = "default",
    ranks: cli.RanksOption = None,
    fabric: cli.FabricOption = None,
    output: cli.OutputOption = None,
) -> None:
    """Find the stage of a pipeline that breaks a model: its validity, a limit, or its results.

    Exits with 1 if a stage breaks it; ``-o`` writes the model before that stage.
    """
    from irgraph.diagnostics import fail
    from irgraph.manage.bisect import bisect as search
    from irgraph.manage.bisect import verifier_finding
    from irgraph.manage.predicates import exceeds_limits, results_differ
    from irgraph.manage.run import find_target
    from irgraph.predict.options import PredictOptions
    from irgraph.text import print_graph

    if limit and check:
        raise fail("give --limit or --check, not both", exit_code=2)
    graph, pipeline = load_pipeline(ctx, model, dim, (pass_, text, script), (ranks, fabric))
    if not pipeline:
        raise fail("nothing to bisect: give --pass, -e or -s", exit_code=2)
    options = PredictOptions(device=device, host=host)
    if limit:
        cli.print_step_notes(graph, host)
    broken = exceeds_limits(limit, options) if limit else verifier_finding
    if check:
        broken = results_differ(graph)
    folders, pricer = tuple(pass_path or ()), find_target(device, options)
    result = search(graph, pipeline, broken, pass_path=folders, pricer=pricer)
    if result.stage is None:
        cli.print_error(f"no stage breaks it ({len(pipeline)} stages; checks: {result.checks})")
        raise typer.Exit
    verb = "fails" if result.after is None else "breaks it"
    cli.print_error(f"{result.stage} {verb} (checks: {result.checks}):\n{result.reason}")
    if output is not None:
        cli.write_result(print_graph(result.before), output)
    raise typer.Exit(1)
