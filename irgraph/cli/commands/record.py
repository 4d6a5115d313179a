"""``irgraph record``: run a step on this machine and keep its traces."""

from __future__ import annotations

from typing import Annotated

import typer

from irgraph.cli.common import BatchOption, JsonOption, TargetArgument, say, working, write_json

PANEL = "traces"


def record(
    target: TargetArgument,
    folder: Annotated[
        str, typer.Option("-o", "--output", metavar="FOLDER", help="Where the traces go.")
    ],
    batch: BatchOption = 2048,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …")] = "cpu",
    steps: Annotated[int, typer.Option(min=1, help="Steps under the profiler.")] = 5,
    runs: Annotated[int, typer.Option(min=1, help="Timed steps without a profiler.")] = 20,
    json: JsonOption = False,
) -> None:
    """Record a step: execution trace, Kineto trace, and median time without the profiler."""
    from msgspec.structs import asdict

    from irgraph.capture.recording.record import record as run

    with working(f"recording {target}"):
        found = run(target, folder, batch=batch, device=device, steps=steps, runs=runs)
    if json:
        write_json(asdict(found))
        return
    say(
        f"step {found.step_time_us / 1e3:.3f} ms without a profiler (median of {runs}), "
        f"{found.profiled_us / 1e3:.3f} ms with it; traces in {folder}"
    )
