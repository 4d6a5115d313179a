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
    name: Annotated[
        str | None, typer.Option(help="Name of the model; the file's by default.")
    ] = None,
    output: OutputOption = None,
) -> None:
    """Lower a PyTorch execution trace, of any schema version, to a model."""
    from irgraph.capture.execution_trace import lower_execution_trace
    from irgraph.text import print_graph

    with working(f"lowering {trace}"):
        captured = lower_execution_trace(trace, name=name, step=step)
    tell(captured)
    write_result(print_graph(captured.graph), output)
