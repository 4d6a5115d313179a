"""The paper's method: a grid search for one MLP per device and kernel, log sizes to log time.

Section III-B-2 and Table II: layers, width, optimizer and learning rate (times ten for SGD), mean
squared error. Learning rates and seeds of one architecture train together under ``vmap``. The grid
is searched by successive halving (by Optuna across architectures, in this module across the rates
of one) or exhaustively. Unlike in the paper's program, the winner is selected on validation rows
outside training, and its error is computed on rows held out from both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from costmodels.learnable.hardware import Floats
from costmodels.learnable.measurements import Measurements
from costmodels.learned.files import Layers
from costmodels.training.nets import Nets, Rows
from costmodels.training.score import OFFSET, Score, score

TABLE: Mapping[str, tuple[Any, ...]] = {
    "layers": (3, 4, 5, 6, 7),
    "width": (128, 256, 512, 1024),
    "optimizer": ("adam", "sgd"),
}
"""Table II without the learning rates, which train together."""
VALIDATION_SHARE = 0.1
"""Share of training rows reserved for validation."""
RUNGS, FACTOR = (100, 300, 900, 2700, 8100), 3
"""Updates after which only the best of each ``FACTOR`` architectures, and of the rates of one,
continue; the last is the end of training."""


class BestModel(Struct, frozen=True):
    """The best model of a search.

    Attributes:
        parameters: its parameters in Table II.
        validation_gmae: its error on the validation rows, as a fraction.
        held_out: its errors on held-out rows; no intervals.
        finished, pruned: number of architectures trained to the end, and pruned.
        seconds: duration of all trials, summed over processes.
    """

    parameters: Mapping[str, Any]
    validation_gmae: float
    held_out: Score
    finished: int
    pruned: int
    seconds: float


def search(
    data: Measurements,
    journal: str | Path,
    *,
    seeds: int = 1,
    full_grid: bool = False,
    table: Mapping[str, tuple[Any, ...]] = TABLE,
    rungs: tuple[int, ...] = RUNGS,
    part: tuple[int, int] = (0, 1),
    progress: Callable[[str], None] | None = None,
) -> None:
    """Search the grid for one op on one device; ``winner`` returns the result.

    Args:
        data: rows of one op and one device.
        journal: file that stores trials; an interrupted search continues with it.
        seeds: initial weights tried for each learning rate.
        full_grid: train every architecture and rate to the end instead of halving.
        table: the grid.
        rungs: as ``RUNGS``.
        part: index of the share of the grid to try, and number of shares; processes may share a
            journal.
        progress: called with each architecture before it is trained.
    """
    study, rows = _study(journal, full_grid, rungs), _rows(data)
    trials = [trial for trial in study.trials if trial.state.name in ("COMPLETE", "PRUNED")]
    finished = [trial.user_attrs["point"] for trial in trials]
    for point in grid(table)[part[0] :: part[1]]:
        if point in finished:
            continue
        if progress is not None:
            progress(", ".join(f"{name} {value}" for name, value in point.items()))
        _run_trial(study, point, rows, seeds, rungs, full_grid)


def grid(table: Mapping[str, tuple[Any, ...]] = TABLE) -> list[dict[str, Any]]:
    """Return the architectures of a table."""
    return [dict(zip(table, values, strict=True)) for values in product(*table.values())]


def winner(journal: str | Path, *, full_grid: bool = False) -> BestModel:
    """Return the best model in a journal."""
    study = _study(journal, full_grid, RUNGS)
    best = study.best_trial
    states = [trial.state.name for trial in study.trials]
    times = [trial.duration.total_seconds() for trial in study.trials if trial.duration]
    return BestModel(
        {**best.user_attrs["point"], "rate": best.user_attrs["rate"]},
        float(best.value),
        Score(**best.user_attrs["held_out"]),
        states.count("COMPLETE"),
        states.count("PRUNED"),
        sum(times),
    )


def _rows(data: Measurements) -> Rows:
    validation = ~data.dev & (np.random.default_rng(0).random(len(data.times)) < VALIDATION_SHARE)
    inputs = np.log(data.shapes())
    times = np.log(data.times).astype(np.float32)
    return Rows(inputs, times, ~data.dev & ~validation, validation, data.dev)


def _study(journal: str | Path, full_grid: bool, rungs: tuple[int, ...]) -> Any:  # noqa: ANN401
    """Return the Optuna study of a journal, with its pruner."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    halving = optuna.pruners.SuccessiveHalvingPruner(min_resource=rungs[0], reduction_factor=FACTOR)
    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(journal))),
        study_name="whole" if full_grid else "halving",
        pruner=optuna.pruners.NopPruner() if full_grid else halving,
        load_if_exists=True,
    )


def _run_trial(
    study: Any,  # noqa: ANN401  (Optuna's study)
    point: Mapping[str, Any],
    rows: Rows,
    seeds: int,
    rungs: tuple[int, ...],
    full_grid: bool,
) -> None:
    """Train an architecture until it ends or is pruned."""
    from optuna.trial import TrialState

    trial = study.ask()
    trial.set_user_attr("point", dict(point))
    for end, stage in _train_in_stages(point, seeds, rows, rungs, full_grid):
        trial.report(stage.error, end)
        if end < rungs[-1] and trial.should_prune():
            study.tell(trial, state=TrialState.PRUNED)
            return
    trial.set_user_attr("rate", stage.rate)
    trial.set_user_attr("held_out", asdict(stage.held_out))
    study.tell(trial, stage.error)


class Stage(Struct, frozen=True):
    """The best net of an architecture so far: validation error, rate, held-out errors, layers."""

    error: float
    rate: float
    held_out: Score
    layers: Layers


def train_winner(
    data: Measurements,
    best: BestModel,
    *,
    seeds: int = 1,
    full_grid: bool = False,
    rungs: tuple[int, ...] = RUNGS,
) -> Stage:
    """Train the winning architecture again in the same way; return its best net."""
    *_, (_, stage) = _train_in_stages(best.parameters, seeds, _rows(data), rungs, full_grid)
    return stage


def _train_in_stages(
    point: Mapping[str, Any], seeds: int, rows: Rows, rungs: tuple[int, ...], full_grid: bool
) -> Iterator[tuple[int, Stage]]:
    """Train an architecture; yield the updates so far and the best net of its rates and seeds."""
    nets = Nets(point, seeds, rows)
    for start, end in zip((0, *rungs), rungs, strict=False):
        nets.train(end - start)
        predicted = nets.predict()
        errors = _gmae(predicted[:, rows.validation], rows.times[rows.validation])
        order = np.argsort(errors)
        best = int(order[0])
        held_out_errors = np.exp(predicted[best] - rows.times)[rows.held_out] - 1
        result = score(held_out_errors, np.zeros(len(held_out_errors), bool))
        yield end, Stage(float(errors[best]), nets.rate(best), result, nets.layers(best))
        if not full_grid:
            nets.select(order[: -(-len(order) // FACTOR)])


def _gmae(predicted: Floats, times: Floats) -> Floats:
    """Return the error of each net, infinite if it has diverged."""
    error = np.exp(np.log(np.abs(np.exp(predicted - times) - 1) + OFFSET).mean(1))
    return np.where(np.isfinite(error), error, np.inf)
