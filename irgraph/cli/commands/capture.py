"""``irgraph capture``: run a training step under the observer and lower it."""

from __future__ import annotations

from typing import Annotated

import typer

from irgraph.cli.common import (
    BatchOption,
    OutputOption,
    TargetArgument,
    tell,
    working,
    write_result,
)

PANEL = "models"


def capture(
    target: TargetArgument,
    batch: BatchOption = 2048,
    device: Annotated[
        str,
        typer.Option(help="meta stands in for the accelerator and computes nothing; or cpu."),
    ] = "meta",
    symbolic: Annotated[
        bool, typer.Option(help="Capture other batch sizes too, to find what depends on it.")
    ] = True,
    pinned: Annotated[
        bool,
        typer.Option("--pinned", help="Host tensors are in pinned memory in the real program."),
    ] = False,
    output: OutputOption = None,
) -> None:
    """Capture one step of a PyTorch program as a model, without running its kernels."""
    from irgraph.capture.live import capture_file
    from irgraph.text import print_graph

    with working(f"loading {target}") as doing:
        captured = capture_file(
            target, batch=batch, device=device, symbolic=symbolic, pinned=pinned, doing=doing
        )
    tell(captured)
    write_result(print_graph(captured.graph), output)
