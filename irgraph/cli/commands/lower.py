"""``irgraph lower``: turn a trace, an ONNX model or an exported program into a model."""

from __future__ import annotations

from typing import Annotated

import typer

from irgraph.cli.common import (
    MAX_SIZE_DIGITS,
    OutputOption,
    print_capture_notes,
    show_progress,
    write_result,
)

PANEL = "models"


def lower(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A PyTorch execution trace, a Kineto trace with shapes (.json[.gz]), a folder of "
            "`irgraph record`, an ONNX model (.onnx) or an exported program (.pt2).",
        ),
    ],
    step: Annotated[
        int | None, typer.Option(help="Step number (default: the last complete one).")
    ] = None,
    kineto: Annotated[
        str | None,
        typer.Option(metavar="TRACE", help="Kineto trace of the same step, for measured times."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the model (default: the file's).")
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            "--dim", metavar="NAME=SIZE", help="Size of a dynamic dimension of a program."
        ),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Let torch load a .pt2 file, which runs its code (pickles).",
        ),
    ] = False,
    output: OutputOption = None,
) -> None:
    """Lower an execution trace, of any schema version, to a model; or a program's forward pass.

    With --kineto, its ops carry the times, streams and kernels that were measured. A Kineto trace
    alone gives those, too, but no tensor identities: such a model cannot be rewritten.
    Exit code 3: the Kineto trace had to be repaired; the report lists how.
    """
    from irgraph.capture.lower import lower_file
    from irgraph.text import print_graph

    sizes = _sizes(dim)
    with show_progress(f"lowering {trace}"):
        captured = lower_file(trace, name=name, step=step, kineto=kineto, dims=sizes, trust=trust)
    print_capture_notes(captured)
    write_result(print_graph(captured.graph), output)
    raise typer.Exit(captured.exit_code)


def _sizes(dims: list[str] | None) -> dict[str, int]:
    """Return the sizes of ``--dim`` options."""
    from irgraph.diagnostics import fail

    result: dict[str, int] = {}
    for item in dims or ():
        name, _, size = item.rpartition("=")
        is_valid = size.isdecimal() and len(size) <= MAX_SIZE_DIGITS and int(size) >= 1
        if not name or not is_valid:
            message = f"--dim: give NAME=SIZE with a whole number of at least 1, not {item!r}"
            raise fail(message, exit_code=2)
        result[name] = int(size)
    return result
