"""Recalibrates the intervals of trained weights: ``python -m costmodels.training.recalibrate``.

The arguments are families (default: all). Their files are rewritten in place, including those of
experiments. The networks do not change: intervals become those that ``irgraph train`` computes for
the same networks. If a family is refitted on all rows, its first training is repeated for the
errors on the calibration rows. Requires ``IRGRAPH_DATA`` and the extra ``train``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec.structs import replace

from costmodels.evaluate.measurements import measurements
from costmodels.learned.weights import Weights, load, load_shipped, save, shipped_models
from costmodels.training.recipe import held_out_errors, learn, read, recalibrate
from costmodels.training.study import (
    SMALLER,
    interval_fields,
    small_shape_rows,
    with_experiment_intervals,
)


def recalibrate_family(family: str, folder: Path) -> Weights:
    """Return a family's weights with intervals recalibrated on the calibration rows."""
    weights = load_shipped(family)
    settings = weights.family.settings
    if not settings.refit:
        return recalibrate(weights, folder)
    first = learn(family, folder, replace(settings, refit=False))
    rescaled = replace(weights, stretch=first.stretch, stretches=first.stretches, cards=first.cards)
    errors = held_out_errors(rescaled, *read(family, folder))
    return replace(rescaled, made={**weights.made, "held_out_pct": errors})


def recalibrate_experiments(family: str, folder: Path) -> dict[Path, Weights]:
    """Return the weights of a family's experiments by file, with recalibrated intervals."""
    holdout = load_shipped(family).family.folder / "holdout"
    files = {p.stem.removeprefix(f"{family}-"): p for p in holdout.glob(f"{family}-*.safetensors")}
    models = {
        name: recalibrate(load(path), folder, keep=small_shape_rows if name == SMALLER else None)
        for name, path in sorted(files.items())
    }
    adjusted = with_experiment_intervals(models, *read(family, folder)) if models else {}
    return {files[name]: model for name, model in adjusted.items()}


def main() -> None:
    """Rewrite the files of the families in the command line."""
    folder = measurements()
    for family in sys.argv[1:] or shipped_models():
        weights, models = (
            recalibrate_family(family, folder),
            recalibrate_experiments(family, folder),
        )
        for path, model in models.items():
            save(model, path)
        if models:
            model_by_name = {path.stem.removeprefix(f"{family}-"): m for path, m in models.items()}
            weights = replace(weights, **interval_fields(model_by_name, folder))
        save(weights, weights.family.weights)


if __name__ == "__main__":
    main()
