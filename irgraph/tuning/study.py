"""Studies of search spaces with Optuna, which samples, prunes, stores and resumes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from irgraph.diagnostics import argument_items, describe, fail
from irgraph.tuning.axes import Choice, Point
from irgraph.tuning.build import objective
from irgraph.tuning.engine import load_optuna, open_study, sampler_of, suggest_choice
from irgraph.tuning.figures import PointFigures
from irgraph.tuning.space import SearchSpace
from irgraph.tuning.storage import close_on_error, close_storage, raise_heartbeat_error

SPACE_ATTRIBUTE = "irgraph_space"
"""Attribute of a study with the fingerprint of its space."""

TRIAL_ATTRIBUTE = "irgraph"
"""Attribute of a trial with its point, its figures, or the reason why there are none."""


class Suggestion(Struct, frozen=True):
    """A point to try.

    Attributes:
        number: number of the trial, for ``tell``.
        point: choices, plain values.
    """

    number: int
    point: dict[str, Choice]


class Trial(Struct, frozen=True):
    """A finished trial with figures.

    Attributes:
        number: number of the trial.
        point: choices.
        values: figures, as in ``PointFigures``.
    """

    number: int
    point: dict[str, Choice]
    values: dict[str, float]


class Study:
    """A search for the best points of a space with Optuna: by ask and tell, or in one run.

    It starts a study, or resumes one of the same space in its storage.

    Args:
        space: search space.
        objectives: figures to minimise (``step.time``, ``memory.peak``, ...) or, for
            ``throughput``, to maximise. With several, the best trials are a Pareto front.
        storage: URL of an Optuna database, such as ``sqlite:///study.db``; by default the study is
            stored in memory.
        name: name of the study in the storage; by default the model's.
        sampler: an Optuna sampler, or its name (default: ``TPESampler``).
        seed: seed of the sampler. A resumed study differs from an uninterrupted one.
        version: version of irgraph: a study that another version started is refused.

    Raises:
        IrgraphError: Optuna is missing; an objective, sampler or storage cannot be used; or the
            study is of another space (exit code 2).

    Attributes:
        space: search space.
        objectives: figures, in the order given.
        optuna: the underlying Optuna study, for its plots and its dashboard.
    """

    space: SearchSpace
    objectives: tuple[str, ...]
    optuna: Any

    def __init__(
        self,
        space: SearchSpace,
        objectives: Sequence[str] = ("step.time",),
        *,
        storage: str | None = None,
        name: str | None = None,
        sampler: object = None,
        seed: int | None = None,
        version: str = "",
    ) -> None:
        self.space = space
        figure_names = argument_items("objectives", objectives, "figures")
        self.objectives = tuple(objective(space, figure_name) for figure_name in figure_names)
        if not self.objectives or len(set(self.objectives)) < len(self.objectives):
            raise fail("objectives: give at least one, each once", exit_code=2)
        optuna = load_optuna()
        study = open_study(optuna, storage, name or space.graph.name, self.objectives)
        self.optuna = study
        with close_on_error(study._storage):
            self._claim(f"{version} {space.fingerprint}".strip())
            study.sampler = sampler_of(optuna, sampler, seed, len(study.trials))
        self._open_trials: dict[int, tuple[Any, Point]] = {}

    def _claim(self, key: str) -> None:
        """Store the key of this space in the study; raise ``IrgraphError`` for another key."""
        # another process stores its key before its first trial: the trials are read first
        has_trials = bool(self.optuna.trials)
        stored_key = self.optuna.user_attrs.get(SPACE_ATTRIBUTE)
        if stored_key is None and not has_trials:
            self.optuna.set_user_attr(SPACE_ATTRIBUTE, key)
        elif stored_key != key:
            hint = "give it another name, or the same model, space and irgraph as before"
            message = f"the study {self.optuna.study_name!r} is of another space"
            raise fail(message, hint=hint, exit_code=2)

    def ask(self) -> Suggestion:
        """Return the next point to try."""
        with close_on_error(self.optuna._storage):
            trial = self.optuna.ask()
            point = self.space.ask(lambda axis: suggest_choice(trial, axis))
        self._open_trials[trial.number] = trial, point
        return Suggestion(trial.number, point)

    def tell(self, number: int, figures: PointFigures) -> None:
        """Report the figures of a point that ``ask`` returned.

        Raises ``IrgraphError`` (exit code 2) if this object did not suggest it, or has its figures.
        """
        if number not in self._open_trials:
            raise fail(f"trial {number} was not asked here, or was told already", exit_code=2)
        trial, point = self._open_trials[number]
        if dict(figures.point) != point:
            raise fail(f"trial {number} has another point", exit_code=2)
        del self._open_trials[number]
        with close_on_error(self.optuna._storage):
            values = self._record_figures(trial, figures)
            if values is None:
                from optuna.trial import TrialState

                self.optuna.tell(trial, state=TrialState.PRUNED)
            else:
                self.optuna.tell(trial, values)

    def close(self) -> None:
        """Close the connections to the storage; a study that is used again opens new ones."""
        close_storage(self.optuna._storage)

    def run(self, trials: int, progress: Callable[[int], None] | None = None) -> None:
        """Run trials until ``trials`` are finished, including trials of earlier runs.

        Each is stored when it is finished, so that a killed study can be resumed. ``progress`` is
        called with the number of finished trials. Raises ``IrgraphError`` (exit code 2) for an
        invalid number of trials.
        """
        if not isinstance(trials, int) or trials < 0:
            raise fail(f"trials: give a whole number from 0, not {describe(trials)}", exit_code=2)
        from optuna.study import MaxTrialsCallback
        from optuna.trial import TrialState

        final_states = (TrialState.COMPLETE, TrialState.PRUNED)
        finished = self.finished
        if finished >= trials:
            return

        def count_trial(_: object, trial: Any) -> None:  # noqa: ANN401  (Optuna's trial)
            nonlocal finished
            finished += trial.state in final_states
            if progress is not None:
                progress(finished)
            raise_heartbeat_error(self.optuna._storage)

        stop = MaxTrialsCallback(trials, states=final_states)
        try:
            self.optuna.optimize(
                self._run_trial, n_trials=trials - finished, callbacks=[count_trial, stop]
            )
        finally:
            self.close()

    def _run_trial(self, trial: Any) -> tuple[float, ...]:  # noqa: ANN401  (Optuna's trial)
        point = self.space.ask(lambda axis: suggest_choice(trial, axis))
        (figures,) = self.space.figures([point])
        values = self._record_figures(trial, figures)
        if values is None:
            from optuna import TrialPruned

            raise TrialPruned(figures.refused)
        return values

    def _record_figures(self, trial: Any, figures: PointFigures) -> tuple[float, ...] | None:  # noqa: ANN401
        """Store figures in a trial; return the objectives' values, ``None`` if it is refused."""
        record = {"point": figures.point, "values": figures.values, "refused": figures.refused}
        trial.set_user_attr(TRIAL_ATTRIBUTE, record)
        if figures.refused:
            return None
        for name, share in figures.excess.items():
            trial.set_constraint(name, share)
        return tuple(figures.values[name] for name in self.objectives)

    @property
    def finished(self) -> int:
        """Number of finished trials, including refused ones."""
        return len(self._trials("COMPLETE", "PRUNED"))

    @property
    def refused(self) -> dict[str, int]:
        """Numbers of refused trials by reason, the most frequent reason first."""
        counts: dict[str, int] = {}
        for trial in self._trials("PRUNED"):
            reason = str(trial.user_attrs.get(TRIAL_ATTRIBUTE, {}).get("refused", "pruned"))
            counts[reason] = counts.get(reason, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: -item[1]))

    @property
    def infeasible(self) -> int:
        """Number of trials that violate a limit."""
        return sum(not _feasible(trial) for trial in self._trials("COMPLETE"))

    @property
    def tried(self) -> list[tuple[Trial, list[str]]]:
        """All trials with figures in order, each with the names of the limits that it violates."""
        result = []
        for trial in self._trials("COMPLETE"):
            record = trial.user_attrs[TRIAL_ATTRIBUTE]
            broken = [name for name, share in trial.constraints.items() if share > 0]
            result.append((Trial(trial.number, record["point"], record["values"]), broken))
        return result

    @property
    def best(self) -> list[Trial]:
        """Best trials within all limits: one, or with several objectives a Pareto front.

        Equal points count once. The list is empty if no trial meets the limits.
        """
        if all(not _feasible(trial) for trial in self._trials("COMPLETE")):
            return []
        feasible = [trial for trial in self.optuna.best_trials if _feasible(trial)]
        trials: dict[str, Trial] = {}
        for optuna_trial in sorted(feasible, key=lambda t: t.number):
            record = optuna_trial.user_attrs[TRIAL_ATTRIBUTE]
            trial = Trial(optuna_trial.number, record["point"], record["values"])
            trials.setdefault(str(sorted(trial.point.items())), trial)
        best = list(trials.values())
        return best[:1] if len(self.objectives) == 1 else best

    @property
    def nearest(self) -> tuple[Trial, dict[str, float]] | None:
        """Trial with the smallest worst excess, and its excess by limit, if none is feasible.

        The excess is relative, 0 or less if the limit is met.
        """
        trials = self._trials("COMPLETE")
        if not trials or any(_feasible(trial) for trial in trials):
            return None
        nearest_trial = min(trials, key=lambda trial: max(trial.constraints.values()))
        record = nearest_trial.user_attrs[TRIAL_ATTRIBUTE]
        return Trial(nearest_trial.number, record["point"], record["values"]), dict(
            nearest_trial.constraints
        )

    def importances(self) -> dict[str, dict[str, float]]:
        """Return Optuna's importance of each axis by objective, as shares of 1.

        They depend on the trials that the sampler chose; empty if there are too few trials.
        """
        from optuna.importance import get_param_importances

        shares_by_objective = {}
        for index, name in enumerate(self.objectives):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    shares = get_param_importances(
                        self.optuna, target=lambda t, index=index: t.values[index]
                    )
            except (ValueError, RuntimeError):
                shares = {}
            shares_by_objective[name] = {axis: float(share) for axis, share in shares.items()}
        return shares_by_objective

    def _trials(self, *states: str) -> list[Any]:
        from optuna.trial import TrialState

        trial_states = tuple(TrialState[state] for state in states)
        with close_on_error(self.optuna._storage):
            return list(self.optuna.get_trials(deepcopy=False, states=trial_states))


def _feasible(trial: Any) -> bool:  # noqa: ANN401  (Optuna's trial)
    shares: Mapping[str, float] = trial.constraints
    return all(share <= 0 for share in shares.values())
