"""``irgraph reduce``: shrink a model on which a pipeline fails, with the same failure."""

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


def reduce(
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
            metavar="FIGURE=BOUND",
            help="Keep the prediction above this after the stages: step.time=9ms.",
        ),
    ] = None,
    device: cli.DeviceOption = "v100",
    host: cli.HostOption = "default",
    ranks: cli.RanksOption = None,
    fabric: cli.FabricOption = None,
    most: Annotated[
        int, typer.Option(min=1, help="Maximum number of smaller models to try.")
    ] = 2000,
    output: cli.OutputOption = None,
) -> None:
    """Shrink a model as long as a pipeline fails on it with the same message."""
    from irgraph.diagnostics import fail
    from irgraph.manage.predicates import exceeds_limits
    from irgraph.manage.reduce import broken_result_predicate, same_failure_predicate
    from irgraph.manage.reduce import reduce as shrink
    from irgraph.manage.run import find_target
    from irgraph.predict.options import PredictOptions
    from irgraph.text import print_graph

    folders = tuple(pass_path or ())
    graph, pipeline = load_pipeline(ctx, model, dim, (pass_, text, script), (ranks, fabric))
    options = PredictOptions(device=device, host=host)
    if limit:
        cli.print_step_notes(graph, host)
    pricer = find_target(device, options)
    predicate = (
        broken_result_predicate(graph, pipeline, exceeds_limits(limit, options), folders, pricer)
        if limit
        else same_failure_predicate(graph, pipeline, folders, pricer)
    )
    if predicate is None:
        condition = "stay below the limit" if limit else "do not fail"
        raise fail(f"nothing to reduce: the stages {condition} on this model", exit_code=2)
    with cli.show_progress(f"reducing {model}"):
        result = shrink(graph, predicate, max_tries=most)
    cli.print_error(f"{result.ops_before} ops became {result.ops} in {result.tries} tries")
    cli.write_result(print_graph(result.graph), output)
