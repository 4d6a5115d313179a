"""``irgraph train``: a learned model of a kernel family."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from costmodels.commands._training import (
    DataOption,
    FamilyArgument,
    family_named,
    folder_of,
    progress,
    require,
)
from irgraph.cli.common import print_error, writable_path

PANEL = "cost models"


def train(
    family: FamilyArgument,
    data: DataOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", callback=writable_path, help="Write the weights here."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same model.")] = 0,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=20, help="Number of updates (default: the family's own)."),
    ] = None,
    study: Annotated[
        bool,
        typer.Option(
            "--study/--no-study",
            help="Also train without each device and without the largest shapes, for intervals "
            "outside the training range; the models go to FILE's folder 'holdout'.",
        ),
    ] = True,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME|FILE", help="With a file: the sheet of the measured device."
        ),
    ] = None,
) -> None:
    """Train a family's model on the training split, or on one device's own file of measurements."""
    if data is not None and data.suffix == ".jsonl":
        require("jax", "flax", "optax", "torch")
        _train_own(family, data, output, seed, steps, device)
        return
    family_named(family)
    folder = folder_of(data)
    require("jax", "flax", "optax")
    _train(family, folder, output or Path(f"{family}.safetensors"), seed, steps, study)


def _train_own(
    family: str, data: Path, output: Path | None, seed: int, steps: int | None, device: str | None
) -> None:
    """Train a correction of the family's formulas on the device that a file was measured on."""
    from costmodels.devices.library import load_device
    from costmodels.learned.correction import save_own
    from costmodels.training.correction import train_own
    from irgraph.diagnostics import fail

    if device is None:
        hint = "irgraph calibrate -o my-device.json makes it; then --device my-device.json"
        raise fail("the sheet of the measured device is not given", hint=hint, exit_code=2)
    count = steps or 2000
    with progress(f"training {family}", count) as advance:
        model = train_own(
            data, family, load_device(device), seed=seed, steps=count, progress=advance
        )
    output = output or Path(f"{family}-{model.device}.safetensors")
    save_own(model, output)
    formula, ours = (model.made[name]["mape"] for name in ("formula_pct", "model_pct"))
    print_error(
        f"wrote {output}: mean error on {model.made['held_out']} held-out rows {ours:.0f} %, "
        f"of the formula {formula:.0f} %"
    )


def _train(
    family: str, data: Path, output: Path, seed: int, steps: int | None, study: bool
) -> None:
    from msgspec.structs import replace

    from costmodels.families import learned_families
    from costmodels.learned.weights import save
    from costmodels.training.recipe import learn
    from costmodels.training.study import experiment_settings, experiments, interval_fields

    writable_path(output)
    settings = replace(learned_families()[family].settings, seed=seed)
    if steps is not None:
        settings = replace(settings, steps=steps)
    options = f" --seed {seed}" + (f" --steps {steps}" if steps else "")
    command = f"irgraph train {family} --data FOLDER{options}{'' if study else ' --no-study'}"
    with progress(f"training {family}", settings.steps * (1 + settings.refit)) as advance:
        weights = learn(family, data, settings, progress=advance)
    if study:
        with progress("experiments", 4 * experiment_settings(settings).steps) as advance:
            models = experiments(family, data, settings, progress=advance)
        weights = replace(weights, **interval_fields(models, data))
        folder = output.parent / "holdout"
        folder.mkdir(parents=True, exist_ok=True)
        for name, model in models.items():
            metadata = {**model.made, "command": command}
            save(replace(model, made=metadata), folder / f"{family}-{name}.safetensors")
    save(replace(weights, made={**weights.made, "command": command}), output)
    print_error(f"wrote {output}")
