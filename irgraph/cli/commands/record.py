"""``irgraph record``: run a step on this machine and record its traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from irgraph.cli.common import (
    BatchOption,
    JsonOption,
    print_error,
    read_typed_model,
    show_progress,
    write_json,
)

if TYPE_CHECKING:
    from irgraph.capture.recording.record import Recording

PANEL = "traces"

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py:NAME|MODEL.ir",
        help="A function of (batch, device) that returns a step, which runs its code; or a model "
        "(on the CPU), which runs none.",
    ),
]


def record(
    target: RunArgument,
    folder: Annotated[
        str, typer.Option("-o", "--output", metavar="FOLDER", help="Where the traces go.")
    ],
    batch: BatchOption = 2048,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …")] = "cpu",
    steps: Annotated[int, typer.Option(min=1, help="Steps under the profiler.")] = 5,
    runs: Annotated[int, typer.Option(min=1, help="Timed steps without a profiler.")] = 20,
    json: JsonOption = False,
) -> None:
    """Record a step, or a model's calls: traces, and the median time without the profiler."""
    from msgspec.structs import asdict

    run = record_model if target.endswith(".ir") else record_program
    with show_progress(f"recording {target}"):
        recording = run(target, folder, batch=batch, device=device, steps=steps, runs=runs)
    if json:
        write_json(asdict(recording))
        return
    print_error(
        f"step {recording.step_time_us / 1e3:.3f} ms without a profiler (median of {runs}), "
        f"{recording.profiled_us / 1e3:.3f} ms with it; traces in {folder}"
    )


def record_program(
    target: str, folder: str, *, batch: int, device: str, steps: int, runs: int
) -> Recording:
    """Record the step of a program."""
    from irgraph.capture.recording.record import record

    return record(target, folder, batch=batch, device=device, steps=steps, runs=runs)


def record_model(
    target: str, folder: str, *, batch: int, device: str, steps: int, runs: int
) -> Recording:
    """Record the calls of a model at its own sizes; ``batch`` is the size without a dim B."""
    from irgraph.capture.recording.record import need_torch, record_step
    from irgraph.diagnostics import fail

    if device != "cpu":
        raise fail("models run on the CPU alone", hint="leave --device out", exit_code=2)
    need_torch(device)
    graph = read_typed_model(target)
    from irgraph.execute.program import GraphProgram
    from irgraph.ir.dim import BATCH

    size = int(graph.dims.get(BATCH, batch))
    return record_step(
        lambda: GraphProgram(graph), graph.name, folder, batch=size, steps=steps, runs=runs
    )
