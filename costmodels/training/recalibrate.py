"""Scales the intervals of trained weights anew: ``python -m costmodels.training.recalibrate``.

Takes families (all, if none is named) and rewrites their files in place, the experiments' too. No
network changes: intervals become those that ``irgraph train`` gives the same networks. Where a
family trains again on all rows, its first training is repeated for the errors that it made on the
rows kept aside. Needs ``IRGRAPH_DATA`` and the extra ``train``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec.structs import replace

from costmodels.evaluate.measurements import measurements
from costmodels.learned.weights import Weights, load, load_shipped, save, shipped_models
from costmodels.training.recipe import held_out, learn, read, recalibrated
from costmodels.training.study import SMALLER, doubted, doubts, smaller


def renewed(family: str, folder: Path) -> Weights:
    """Return a family's weights with intervals scaled anew on the rows kept aside."""
    weights = load_shipped(family)
    settings = weights.family.settings
    if not settings.refit:
        return recalibrated(weights, folder)
    first = learn(family, folder, replace(settings, refit=False))
    again = replace(weights, stretch=first.stretch, stretches=first.stretches, cards=first.cards)
    held = held_out(again, *read(family, folder))
    return replace(again, made={**weights.made, "held_out_pct": held})


def experimented(family: str, folder: Path) -> dict[Path, Weights]:
    """Return the weights of a family's experiments by file, with intervals scaled anew."""
    place = load_shipped(family).family.folder / "holdout"
    files = {p.stem.removeprefix(f"{family}-"): p for p in place.glob(f"{family}-*.safetensors")}
    models = {
        name: recalibrated(load(path), folder, keep=smaller if name == SMALLER else None)
        for name, path in sorted(files.items())
    }
    found = doubted(models, *read(family, folder)) if models else {}
    return {files[name]: model for name, model in found.items()}


def main() -> None:
    """Rewrite the files of the families that the command line names."""
    folder = measurements()
    for family in sys.argv[1:] or shipped_models():
        weights, models = renewed(family, folder), experimented(family, folder)
        for path, model in models.items():
            save(model, path)
        if models:
            named = {path.stem.removeprefix(f"{family}-"): m for path, m in models.items()}
            weights = replace(weights, **doubts(named, folder))
        save(weights, weights.family.weights)


if __name__ == "__main__":
    main()
