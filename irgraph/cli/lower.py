"""``irgraph lower``: turn an execution trace into a model."""

from __future__ import annotations

from typing import Annotated

import typer

from irgraph.cli.common import OutputOption, tell, working, write_result


def lower(
    trace: Annotated[
        str, typer.Argument(metavar="ET", help="A PyTorch execution trace (.json[.gz]).")
    ],
    step: Annotated[
        int | None, typer.Option(help="Which step of several; the last complete one by default.")
    ] = None,
    kineto: Annotated[
        str | None,
        typer.Option(metavar="TRACE", help="Kineto trace of the same step, for measured times."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the model; the file's by default.")
    ] = None,
    output: OutputOption = None,
) -> None:
    """Lower a PyTorch execution trace, of any schema version, to a model.

    With --kineto, its ops carry the times, streams and kernels that were measured.
    """
    from irgraph.capture.execution_trace import lower_execution_trace
    from irgraph.capture.measured import lower_with_times
    from irgraph.text import print_graph

    with working(f"lowering {trace}"):
        if kineto is None:
            captured = lower_execution_trace(trace, name=name, step=step)
        else:
            captured, _ = lower_with_times(trace, kineto, name=name, step=step)
    tell(captured)
    write_result(print_graph(captured.graph), output)
