"""``irgraph train`` and ``irgraph search``: learn kernels from measurements."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from irgraph.cli.common import JsonOption, console, say, writable, write_json

if TYPE_CHECKING:
    from costmodels.learned.data import Measurements
    from costmodels.learned.features import Family
    from costmodels.learned.paper import Winner

ONE_CORE = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
"""Keeps XLA to one core: sums then have one order, and the same seed gives the same weights."""

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FOLDER|FILE",
        help="Measurements: kernels/*.csv.gz, or a file of `irgraph measure`.",
        envvar="IRGRAPH_DATA",
    ),
]


def train(
    family: Annotated[str, typer.Argument(metavar="FAMILY", help="gemm, conv2d, softmax, …")],
    data: DataOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", callback=writable, help="Write the weights here."
        ),
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
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME|FILE", help="With a file: the sheet of what was measured."
        ),
    ] = None,
) -> None:
    """Train a family's model on the training split, or on one device's own file of measurements."""
    if data is not None and data.suffix == ".jsonl":
        _require("jax", "flax", "optax", "torch")
        _train_own(family, data, output, seed, steps, device)
        return
    _family(family)
    folder = _folder(data)
    _require("jax", "flax", "optax")
    _train(family, folder, output or Path(f"{family}.safetensors"), seed, steps, study)


def _train_own(
    family: str, data: Path, output: Path | None, seed: int, steps: int | None, device: str | None
) -> None:
    """Train a correction of the family's formulas on the device that a file was measured on."""
    from costmodels.learned.own import save_own
    from costmodels.learned.own_train import train_own
    from costmodels.sheet import load_device
    from irgraph.text.diagnostics import fail

    if device is None:
        hint = "irgraph calibrate -o my-device.json makes it; then --device my-device.json"
        raise fail("the sheet of the measured device is not given", hint=hint, exit_code=2)
    count = steps or 2000
    with progress(f"training {family}", count) as tell:
        model = train_own(data, family, load_device(device), seed=seed, steps=count, progress=tell)
    output = output or Path(f"{family}-{model.device}.safetensors")
    save_own(model, output)
    formula, ours = (model.made[name]["mape"] for name in ("formula_pct", "model_pct"))
    say(f"wrote {output}: mean error on {model.made['held_out']} held-out rows {ours:.0f} %, "
        f"of the formula {formula:.0f} %")  # fmt: skip


def _train(
    family: str, data: Path, output: Path, seed: int, steps: int | None, study: bool
) -> None:
    from dataclasses import replace

    from costmodels.learned.recipe import SETTINGS, learn
    from costmodels.learned.study import doubts, experiments, short
    from costmodels.learned.weights import save

    writable(output)
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


def search(
    family: Annotated[str, typer.Argument(metavar="FAMILY", help="gemm, conv2d, softmax, …")],
    op: Annotated[str, typer.Option("--op", help="A measured op, such as linear.")],
    device: Annotated[str, typer.Option("--device", help="A measured device.")],
    data: DataOption = None,
    journal: Annotated[
        Path,
        typer.Option(
            "--journal", metavar="FILE", callback=writable, help="Remembers trials; continued."
        ),
    ] = Path("search.journal"),
    whole: Annotated[bool, typer.Option("--whole", help="The exhaustive grid.")] = False,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="For each learning rate.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", callback=writable, help="Write the winner here."
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes, one core each.")] = 1,
    json: JsonOption = False,
) -> None:
    """Search the paper's grid (Table II) for one op on one device."""
    from irgraph.text.diagnostics import fail, near

    chosen = _family(family)
    folder = _folder(data)
    _require("jax", "flax", "optax", "optuna")
    from costmodels.learned.paper import grid, winner
    from costmodels.learned.recipe import read

    rows, _ = read(family, folder)
    for what, name, known in (("op", op, chosen.ops), ("device", device, rows.devices)):
        if name not in known:
            message = f"{family} was not measured for {what} {name!r}{near(name, known)}"
            raise fail(message, hint=f"known: {', '.join(known)}", exit_code=2)
    rows = rows.where(rows.of(device) & (rows.op == chosen.ops.index(op)))
    with progress("searching", -(-len(grid()) // workers)) as tell:
        _search(rows, journal, seeds, whole, workers, lambda _: tell(1))
    best = winner(journal, whole=whole)
    if output is not None:
        _write_winner(rows, chosen, op, device, best, output, seeds=seeds, whole=whole)
    summary = {
        "best": dict(best.parameters),
        "held_out_pct": best.held_out.as_percent(),
        "finished": best.finished,
        "given_up": best.given_up,
        "trial_seconds": round(best.seconds, 1),
    }
    if json:
        write_json(summary)
        return
    for name, value in summary.items():
        console().print(f"{name}: {value}")


def _write_winner(
    rows: Measurements,
    family: Family,
    op: str,
    device: str,
    best: Winner,
    output: Path,
    *,
    seeds: int,
    whole: bool,
) -> None:
    """Train the winner once more and write its weights."""
    from costmodels.learned.paper import train_winner
    from costmodels.learned.paper_weights import PaperNet, save_paper

    stage = train_winner(rows, best, seeds=seeds, whole=whole)
    asked = f"{' --whole' if whole else ''}{f' --seeds {seeds}' if seeds > 1 else ''}"
    made = {
        "command": f"irgraph search {family.name} --op {op} --device {device}{asked} -o FILE",
        "parameters": {**best.parameters},
        "held_out_pct": stage.held_out.as_percent(),
        "finished": best.finished,
        "given_up": best.given_up,
        "trial_seconds": round(best.seconds, 1),
        "data": {f"kernels/{family.table}.csv.gz": rows.sha256},
    }
    save_paper(PaperNet(family, op, device, stage.layers, made), output)
    say(f"wrote {output}")


def _search(
    rows: Measurements,
    journal: Path,
    seeds: int,
    whole: bool,
    workers: int,
    tell: Callable[[str], None],
) -> None:
    """Search in this process, and in more beside it that share the journal."""
    from functools import partial
    from multiprocessing import get_context

    from costmodels.learned.paper import search as run
    from irgraph.text.diagnostics import fail

    parts = [
        partial(run, rows, journal, seeds=seeds, whole=whole, part=(number, workers))
        for number in range(workers)
    ]
    others = [get_context("spawn").Process(target=part) for part in parts[1:]]
    for process in others:
        process.start()
    parts[0](progress=tell)
    for process in others:
        process.join()
        if process.exitcode:
            raise fail(f"a worker ended with {process.exitcode}", hint="start the search again")


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error while it is a terminal; yield what moves it."""
    from rich.progress import Progress

    out = console(error=True)
    with Progress(console=out, disable=not out.is_terminal, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda steps: bar.advance(task, steps)


def _family(name: str) -> Family:
    from costmodels.learned.features import FAMILIES
    from costmodels.measure.sweep import TRAINED_AS
    from irgraph.text.diagnostics import fail, near

    if name not in FAMILIES:
        other = TRAINED_AS.get(name)
        word = f"; with kernels/*.csv.gz it is {other!r}" if other else near(name, FAMILIES)
        message = f"no family to train is called {name!r}{word}"
        raise fail(message, hint=f"known: {', '.join(FAMILIES)}", exit_code=2)
    return FAMILIES[name]


def _folder(data: Path | None) -> Path:
    from irgraph.text.diagnostics import fail

    if data is None:
        hint = "give --data FOLDER or set IRGRAPH_DATA"
        raise fail("no folder of measurements", hint=hint, exit_code=2)
    return data


def _require(*names: str) -> None:
    """Check that packages are there, and keep XLA to one core before it starts."""
    from importlib.util import find_spec

    from irgraph.text.diagnostics import fail

    missing = [name for name in names if find_spec(name) is None]
    if missing:
        hint = "pip install 'irgraph[train]'"
        raise fail(f"training needs {missing[0]}, which is not installed", hint=hint, exit_code=2)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_CORE}".strip()
