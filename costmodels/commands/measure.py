"""``irgraph measure``: microbenchmarks on a torch device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from irgraph.cli.common import TorchDeviceOption, finite_value, print_error, writable_path

PANEL = "cost models"


def measure(
    families: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FAMILY|MODEL]…",
            help="Families (default: all), or models, whose calls are measured.",
        ),
    ] = None,
    device: TorchDeviceOption = "cuda",
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Output file; an existing one is continued.",
            callback=writable_path,
        ),
    ] = "measurements.jsonl",
    count: Annotated[int, typer.Option("--count", min=1, help="Cases of each family.")] = 100,
    budget: Annotated[
        float, typer.Option("--budget", min=0, callback=finite_value, help="Seconds to spend.")
    ] = 600.0,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same cases.")] = 0,
    dtype: Annotated[
        list[str] | None, typer.Option("--dtype", help="f32, f16, bf16, f64 (repeatable).")
    ] = None,
) -> None:
    """Measure kernels over a sweep of sizes, or a model's calls; resumes where it stopped."""
    from rich.progress import Progress

    from costmodels.benchmarks.bench import DTYPES
    from costmodels.families import sweeps
    from costmodels.measure.run import measure as run
    from irgraph.cli.common import console
    from irgraph.diagnostics import fail, suggestion

    chosen = families or list(sweeps())
    models = [name for name in chosen if name not in sweeps() and Path(name).is_file()]
    if models:
        if len(models) < len(chosen) or dtype:
            raise fail("models are measured as they are: without families and --dtype", exit_code=2)
        _measure_models(models, device, output, seed)
        return
    kinds = tuple(dtype or ("f32",))
    for kind in kinds:
        if kind not in DTYPES:
            hint = f"known: {', '.join(DTYPES)}"
            raise fail(f"no data type {kind!r}{suggestion(kind, DTYPES)}", hint=hint, exit_code=2)
    out = console(error=True)
    with Progress(console=out, disable=not out.is_terminal, transient=True) as bar:
        task = bar.add_task("measuring", total=len(chosen) * count)
        done = run(
            chosen,
            device,
            output,
            count=count,
            budget=budget,
            seed=seed,
            dtypes=kinds,
            progress=lambda case: bar.update(task, advance=1, description=case.key),
        )
    print_error(f"{done.new} new measurements in {output}")
    if done.failed:
        print_error(
            f"{done.failed} of them have no time: out of memory, or not for this device or type"
        )
    if done.unstarted:
        print_error(
            f"{done.unstarted} cases are left: the budget of {budget:g} s is spent; run it again"
        )


def _measure_models(paths: list[str], device: str, output: str, seed: int) -> None:
    """Measure the calls of models, and report the number of new rows."""
    from costmodels.measure.run import torch_for
    from irgraph.cli.common import read_typed_model, show_progress

    torch_for(device)
    from costmodels.measure.calls import measure_calls

    with show_progress(f"measuring the calls of {', '.join(paths)}"):
        new = measure_calls(map(read_typed_model, paths), device, output, seed=seed)
    print_error(f"{new} new measurements in {output}")
