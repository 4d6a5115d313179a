"""``irgraph capture``: run a training step under the observer and lower it."""

from __future__ import annotations

import contextlib
import sys
from enum import StrEnum
from typing import Annotated

import typer

from irgraph.cli import common as cli

PANEL = "models"


class StepAt(StrEnum):
    """Where steps end."""

    update = "update"
    batch = "batch"
    backward = "backward"


def capture(
    target: cli.ProgramArgument,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of a script, after --.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, help="Batch size of the step of a function of (batch, device): 2048 by default."
        ),
    ] = None,
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
    ranks: Annotated[
        str | None,
        typer.Option(
            metavar="N|MxN", help="Ranks of the program: 8, or 2x8 (machines x ranks on each)."
        ),
    ] = None,
    rank: Annotated[int, typer.Option(help="Which of the ranks to capture.")] = 0,
    step_at: Annotated[
        StepAt, typer.Option(help="Where steps of a program's loop end.")
    ] = StepAt.update,
    output: cli.OutputOption = None,
) -> None:
    """Capture one step of a PyTorch program as a model, without running its kernels.

    The program is a training script, of whose loop a step is captured, or a function of it. The
    script runs up to the steps that are needed; what it writes and prints is written.
    """
    from irgraph.capture.live import capture_file
    from irgraph.text import print_graph

    # what the program prints is not the model
    with cli.working(f"loading {target}") as doing, contextlib.redirect_stdout(sys.stderr):
        captured = capture_file(
            target, batch=batch, arguments=arguments or (), step_at=step_at.value, device=device,
            symbolic=symbolic, pinned=pinned, ranks=ranks, rank=rank, doing=doing,
        )  # fmt: skip
    cli.tell(captured)
    cli.write_result(print_graph(captured.graph), output)
