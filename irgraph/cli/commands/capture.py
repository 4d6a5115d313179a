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
    """End of a step in the program's loop."""

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
            min=1, help="Batch size passed to a function of (batch, device). Default: 2048."
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(help="meta emulates the accelerator and computes nothing; or cpu."),
    ] = "meta",
    symbolic: Annotated[
        bool,
        typer.Option(help="Also capture other batch sizes, to find what depends on the batch."),
    ] = True,
    pinned: Annotated[
        bool,
        typer.Option("--pinned", help="In the real program, host tensors are in pinned memory."),
    ] = False,
    ranks: Annotated[
        str | None,
        typer.Option(
            metavar="N|MxN", help="Ranks of the program: 8, or 2x8 (machines x ranks on each)."
        ),
    ] = None,
    rank: Annotated[int, typer.Option(help="Which of the ranks to capture.")] = 0,
    step_at: Annotated[
        StepAt, typer.Option(help="What ends a step of the program's loop.")
    ] = StepAt.update,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE:LINE=VALUE",
            help="Value that a line of the program reads if it is unknown: true, false or a "
            "number. Can be repeated.",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of a loop that ends by an unknown value.")
    ] = 10,
    card: Annotated[
        str | None,
        typer.Option(
            help="Card whose properties the program reads, such as h100; by default an A100."
        ),
    ] = None,
    loader: Annotated[
        str | None,
        typer.Option(
            metavar="TIME[/WORKERS]",
            help="Time in which the program's loader makes a batch, such as 12ms, and its number "
            "of workers: 12ms/4. By default measured on this CPU.",
        ),
    ] = None,
    output: cli.OutputOption = None,
) -> None:
    """Capture one step of a PyTorch program as a model, without running its kernels.

    The program is a training script, from whose loop one step is captured, or a function in one.
    This runs its code until enough steps are recorded: it really prints and writes its files.
    """
    from irgraph.capture.live import capture_file
    from irgraph.text import print_graph

    # the output of the program is not part of the model on stdout
    with cli.show_progress(f"loading {target}") as doing, contextlib.redirect_stdout(sys.stderr):
        captured = capture_file(
            target,
            batch=batch,
            arguments=arguments or (),
            step_at=step_at.value,
            device=device,
            symbolic=symbolic,
            pinned=pinned,
            ranks=ranks,
            rank=rank,
            assume=assume or (),
            rounds=rounds,
            card=card,
            loader=loader,
            doing=doing,
        )
    cli.print_capture_notes(captured)
    cli.write_result(print_graph(captured.graph), output)
