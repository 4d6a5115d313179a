"""Interface to Optuna: studies in databases, samplers, suggestions."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from irgraph.diagnostics import fail, suggestion
from irgraph.tuning.axes import Axis, Choice
from irgraph.tuning.limits import FIGURES
from irgraph.tuning.storage import close_on_error, close_storage, open_storage

RETRY_DELAYS = (0.1, 0.3, 1.0, 3.0)
"""Seconds before each further attempt to create a study."""

RACES = frozenset((
    "OperationalError", "IntegrityError", "ProgrammingError", "StorageInternalError",
    "DuplicatedStudyError",
))  # fmt: skip
"""Errors of a database in which another process creates the same tables or the same study."""


def load_optuna() -> Any:  # noqa: ANN401  (a module)
    """Import Optuna and silence its messages; errors are raised, its log repeats them at length.

    Raises ``IrgraphError`` (exit code 2) if it is not installed or too old.
    """
    if find_spec("optuna") is None:
        hint = "pip install 'irgraph[tune]'"
        raise fail("a study needs Optuna, which is not installed", hint=hint, exit_code=2)
    import optuna

    if not hasattr(optuna.trial.Trial, "set_constraint"):
        hint = "pip install 'irgraph[tune]'"
        message = f"a study needs Optuna 5 or newer, not {optuna.__version__}"
        raise fail(message, hint=hint, exit_code=2)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_study(optuna: Any, storage: str | None, name: str, objectives: Sequence[str]) -> Any:  # noqa: ANN401
    """Return the study of a name, created if it does not exist."""
    directions = [
        "maximize" if FIGURES[objective].higher_is_better else "minimize"
        for objective in objectives
    ]
    try:
        study = _create_study(optuna, storage, name, directions)
    except Exception as error:
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise fail(f"--storage: {storage} cannot be used: {text}", exit_code=2) from None
    with close_on_error(study._storage):
        _claim_objectives(study, directions, list(objectives))
    return study


def _claim_objectives(study: Any, directions: list[str], objectives: list[str]) -> None:  # noqa: ANN401
    """Store the objectives in a new study; raise ``IrgraphError`` if it has others."""
    names = study.metric_names
    if [d.name.lower() for d in study.directions] != directions or names not in (None, objectives):
        message = f"the study {study.study_name!r} has other objectives: {', '.join(names or ())}"
        raise fail(message, hint="give it another name, or the same objectives", exit_code=2)
    if names is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study.set_metric_names(objectives)


def _create_study(
    optuna: Any,  # noqa: ANN401
    storage: str | None,
    name: str,
    directions: Sequence[str],
) -> Any:  # noqa: ANN401
    """Create or load a study; another process may be creating the same tables or study."""
    for delay in (*RETRY_DELAYS, None):
        database = None
        try:
            database = storage and open_storage(optuna, storage)
            return optuna.create_study(
                storage=database,
                study_name=name,
                directions=directions,
                load_if_exists=True,
            )
        except Exception as error:
            close_storage(database)
            names = {type(cause).__name__ for cause in (error, error.__cause__, error.__context__)}
            if delay is None or names.isdisjoint(RACES):
                raise
            time.sleep(delay)
    raise AssertionError("the last attempt returns or raises")


def sampler_of(optuna: Any, sampler: object, seed: int | None, trial_count: int) -> Any:  # noqa: ANN401
    """Return a sampler; a resumed study has another seed than its earlier trials."""
    start = None if seed is None else seed + trial_count
    if sampler is None:
        sampler = "TPESampler"
    if not isinstance(sampler, str):
        return sampler
    names = [
        name for name in vars(optuna.samplers) if name.endswith("Sampler") and name[:4] != "Base"
    ]
    if sampler not in names:
        hint = f"samplers: {', '.join(sorted(names))}"
        message = f"--sampler: Optuna has no {sampler!r}{suggestion(sampler, names)}"
        raise fail(message, hint=hint, exit_code=2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about experimental samplers
            return getattr(optuna.samplers, sampler)(seed=start)
    except (TypeError, ImportError) as error:
        raise fail(f"--sampler: {sampler} cannot be made: {error}", exit_code=2) from None


def suggest_choice(trial: Any, axis: Axis) -> Choice:  # noqa: ANN401  (Optuna's trial)
    """Return Optuna's choice: an integer of evenly spaced ones, or else a category."""
    if len(axis.choices) == 1:
        return axis.choices[0]
    if axis.step:
        first, last = axis.choices[0], axis.choices[-1]
        return int(trial.suggest_int(axis.name, first, last, step=axis.step))
    choice: Choice = trial.suggest_categorical(axis.name, axis.choices)
    return choice
