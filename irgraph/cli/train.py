"""``irgraph train``: learn a family of kernels from measurements."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from irgraph.cli.common import console, say

ONE_CORE = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
"""Keeps XLA to one core: sums then have one order, and the same seed gives the same weights."""


def train(
    family: Annotated[str, typer.Argument(metavar="FAMILY", help="gemm, conv2d, softmax, …")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="FOLDER",
            help="Measurements (kernels/*.csv.gz).",
            envvar="IRGRAPH_DATA",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the weights here.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same model.")] = 0,
    steps: Annotated[
        int | None, typer.Option("--steps", min=20, help="Updates; the family's own by default.")
    ] = None,
    study: Annotated[
        bool,
        typer.Option(
            "--study/--no-study",
            help="Also train without each device and without the largest shapes, for the "
            "intervals outside what was seen; the models go to FILE's folder 'holdout'.",
        ),
    ] = True,
) -> None:
    """Train a family's model on the training split and write its weights."""
    from costmodels.learned.features import FAMILIES
    from irgraph.text.diagnostics import fail, near

    if family not in FAMILIES:
        message = f"no family to train is called {family!r}{near(family, FAMILIES)}"
        raise fail(message, hint=f"known: {', '.join(FAMILIES)}", exit_code=2)
    if data is None:
        hint = "give --data FOLDER or set IRGRAPH_DATA"
        raise fail("no folder of measurements", hint=hint, exit_code=2)
    _require_jax()
    _train(family, data, output or Path(f"{family}.safetensors"), seed, steps, study)


def _train(
    family: str, data: Path, output: Path, seed: int, steps: int | None, study: bool
) -> None:
    from dataclasses import replace

    from costmodels.learned.recipe import SETTINGS, learn
    from costmodels.learned.study import doubts, experiments, short
    from costmodels.learned.weights import save

    settings = replace(SETTINGS[family], seed=seed)
    if steps is not None:
        settings = replace(settings, steps=steps)
    asked = f" --seed {seed}" + (f" --steps {steps}" if steps else "")
    command = f"irgraph train {family} --data FOLDER{asked}{'' if study else ' --no-study'}"
    with progress(f"training {family}", settings.steps * (1 + settings.refit)) as tell:
        weights = learn(family, data, settings, progress=tell)
    if study:
        with progress("experiments", 4 * short(settings).steps) as tell:
            models = experiments(family, data, settings, progress=tell)
        unseen, octave = doubts(models, data)
        weights = replace(weights, unseen=unseen, octave=octave)
        folder = output.parent / "holdout"
        folder.mkdir(parents=True, exist_ok=True)
        for name, model in models.items():
            made = {**model.made, "command": command}
            save(replace(model, made=made), folder / f"{family}-{name}.safetensors")
    save(replace(weights, made={**weights.made, "command": command}), output)
    say(f"wrote {output}")


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error while it is a terminal; yield what moves it."""
    from rich.progress import Progress

    out = console(error=True)
    with Progress(console=out, disable=not out.is_terminal, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda steps: bar.advance(task, steps)


def _require_jax() -> None:
    from importlib.util import find_spec

    from irgraph.text.diagnostics import fail

    missing = [name for name in ("jax", "flax", "optax") if find_spec(name) is None]
    if missing:
        hint = "pip install 'irgraph[train]'"
        raise fail(f"training needs {missing[0]}, which is not installed", hint=hint, exit_code=2)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_CORE}".strip()
