"""What studies use of Optuna: studies in databases, samplers, suggestions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from irgraph.diagnostics import fail, suggestion
from irgraph.tuning.axes import Axis, Choice
from irgraph.tuning.limits import FIGURES

HEARTBEAT = 30
"""Seconds between signs of life of a trial in a database: one without any is failed by Optuna."""


def load_optuna() -> Any:  # noqa: ANN401  (a module)
    """Return Optuna, silenced but for warnings.

    Raises ``IrgraphError`` (exit code 2) where it is not installed.
    """
    if find_spec("optuna") is None:
        hint = "pip install 'irgraph[tune]'"
        raise fail("a study needs Optuna, which is not installed", hint=hint, exit_code=2)
    import optuna

    if not hasattr(optuna.trial.Trial, "set_constraint"):
        hint = "pip install 'irgraph[tune]'"
        message = f"a study needs Optuna 5 or newer, not {optuna.__version__}"
        raise fail(message, hint=hint, exit_code=2)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def opened(optuna: Any, storage: str | None, name: str, objectives: Sequence[str]) -> Any:  # noqa: ANN401
    """Return the study of a name, made where there is none."""
    directions = ["maximize" if FIGURES[one].more else "minimize" for one in objectives]
    try:
        where = storage and _stored(optuna, storage)
        found = optuna.create_study(
            storage=where, study_name=name, directions=directions, load_if_exists=True
        )
    except Exception as error:
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise fail(f"--storage: {storage} cannot be used: {text}", exit_code=2) from None
    if [d.name.lower() for d in found.directions] != directions or (
        found.metric_names not in (None, list(objectives))
    ):
        message = f"the study {name!r} has other objectives: {', '.join(found.metric_names or ())}"
        raise fail(message, hint="give it another name, or the same objectives", exit_code=2)
    if found.metric_names is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.set_metric_names(list(objectives))
    return found


def _stored(optuna: Any, storage: str) -> Any:  # noqa: ANN401  (Optuna's storage)
    """Return a storage; one in a database tells dead trials by their heartbeat."""
    if "://" not in storage or storage.startswith("redis"):
        return storage
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = optuna.storages.RDBStorage(storage, heartbeat_interval=HEARTBEAT)
    if storage.startswith("sqlite"):
        _logged(found.engine)
    return found


def _logged(engine: Any) -> None:  # noqa: ANN401  (SQLAlchemy's)
    """Let a SQLite file keep a log of what is written: Optuna commits a dozen times a trial.

    What was written is there after the process is killed; a power cut may cost the last trials.
    """
    from sqlalchemy import event

    def set_up(connection: Any, _: object) -> None:  # noqa: ANN401  (sqlite3's)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")

    event.listen(engine, "connect", set_up)
    engine.dispose()  # its connections so far do not know of it


def sampler_of(optuna: Any, given: object, seed: int | None, done: int) -> Any:  # noqa: ANN401
    """Return a sampler; one that goes on does not draw the same numbers again."""
    start = None if seed is None else seed + done
    if given is None:
        given = "TPESampler"
    if not isinstance(given, str):
        return given
    names = [
        name for name in vars(optuna.samplers) if name.endswith("Sampler") and name[:4] != "Base"
    ]
    if given not in names:
        hint = f"samplers: {', '.join(sorted(names))}"
        message = f"--sampler: Optuna has no {given!r}{suggestion(given, names)}"
        raise fail(message, hint=hint, exit_code=2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is experimental
            return getattr(optuna.samplers, given)(seed=start)
    except (TypeError, ImportError) as error:
        raise fail(f"--sampler: {given} cannot be made: {error}", exit_code=2) from None


def suggested(trial: Any, axis: Axis) -> Choice:  # noqa: ANN401  (Optuna's trial)
    """Return Optuna's choice: of evenly spaced numbers as a number, of anything else as a name."""
    if len(axis.choices) == 1:
        return axis.choices[0]
    if axis.step:
        first, last = axis.choices[0], axis.choices[-1]
        return int(trial.suggest_int(axis.name, first, last, step=axis.step))
    found: Choice = trial.suggest_categorical(axis.name, axis.choices)
    return found
