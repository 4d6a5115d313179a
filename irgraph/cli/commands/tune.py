"""``irgraph tune``: search for the best variants of a step with Optuna."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli.common import (
    JsonOption,
    ModelArgument,
    OutputOption,
    console,
    print_error,
    print_listing,
    print_step_notes,
    read_typed_model,
    show_progress,
    write_json,
    write_result,
)
from irgraph.cli.html import HtmlOption

if TYPE_CHECKING:
    from irgraph.tuning.space import SearchSpace
    from irgraph.tuning.study import Study, Trial

PANEL = "predict"

MAX_LISTED_TRIALS = 20
"""Maximum number of best trials in a table."""

MAX_REASONS = 3
"""Maximum number of printed reasons of refusals."""


def tune(
    model: ModelArgument,
    space: Annotated[
        str, typer.Option(metavar="FILE", help="The search space: space.toml (docs/tune.md).")
    ],
    trials: Annotated[
        int,
        typer.Option(min=0, max=10**7, help="Number of trials, including those of earlier runs."),
    ] = 1000,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE",
            help="step.time, gpu.active, memory.peak, throughput or price; several: a Pareto "
            "front (default: those of the file, or step.time).",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Optuna storage, to resume a study: sqlite:///study.db. One of Redis holds "
            "pickles, which runs its code.",
        ),
    ] = None,
    study: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the study (default: the model's).")
    ] = None,
    sampler: Annotated[
        str | None, typer.Option(metavar="NAME", help="An Optuna sampler, such as NSGAIISampler.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**31, help="Seed of the sampler.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Only list the choices and the reasons for them.")
    ] = False,
    output: OutputOption = None,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Search for the best variants of a step; -o writes the script of the best one.

    With --explain, -o writes the choices and the reasons for them.
    """
    from irgraph.diagnostics import fail
    from irgraph.tuning.damage import refuse_damaged_study
    from irgraph.tuning.engine import load_optuna
    from irgraph.tuning.file import parse_space_file, read_space

    parse_space_file(space)
    if explain and html is not None:
        raise fail("--html reports a search: --explain runs none", exit_code=2)
    if not explain:
        load_optuna()
    graph = read_typed_model(model)
    with show_progress("trying passes"):
        search_space, objectives = read_space(space, graph)
    if explain:
        _explain(search_space, json, output)
        return
    _check_choices(search_space)
    print_step_notes(graph, *search_space.hosts, software=search_space.options.software)
    objective_names = tuple(objective or objectives or ("step.time",))
    with (
        refuse_damaged_study(storage),
        closing(
            _study(search_space, objective_names, storage, study, sampler, seed)
        ) as tuning_study,
    ):
        previous_trials = tuning_study.finished
        _run(tuning_study, trials)
        _report(tuning_study, previous_trials, json)
        if html is not None:
            _write_report(tuning_study, previous_trials, html)
        if output is not None:
            _write(tuning_study, output)


def _explain(space: SearchSpace, json: bool, output: str | None) -> None:
    write_result(space.to_json() if json else space.explain() + "\n", output)


def _check_choices(space: SearchSpace) -> None:
    """Print the passes that are left out; refuse a space with only one point."""
    from irgraph.diagnostics import Diagnostic, fail

    lines = [f"{name} is left out: {reason}" for name, reason in space.left_out.items()]
    if space.most == 1:
        notes = [Diagnostic(line, severity="note") for line in lines]
        hint = "give several sizes (dims), devices or hosts, or passes that change this step"
        message = "there is nothing to choose: the space has one point"
        raise fail(message, hint=hint, notes=notes, exit_code=2)
    for line in lines:
        print_error(line)


def _study(
    space: SearchSpace,
    objectives: tuple[str, ...],
    storage: str | None,
    name: str | None,
    sampler: str | None,
    seed: int | None,
) -> Study:
    from importlib.metadata import version

    from irgraph.tuning.study import Study

    return Study(
        space,
        objectives,
        storage=storage,
        name=name,
        sampler=sampler,
        seed=seed,
        version=version("irgraph"),
    )


def _run(study: Study, trials: int) -> None:
    """Run the study with progress on a terminal; Ctrl-C ends it and reports finished trials."""
    from rich.progress import Progress

    out = console(error=True)
    with Progress(console=out, disable=not out.is_terminal, transient=True) as bar:
        task = bar.add_task("trials", total=trials, completed=study.finished)
        try:
            study.run(trials, lambda done: bar.update(task, completed=done))
        except KeyboardInterrupt:
            print_error(f"ended after {study.finished} of {trials} trials")


def _summary(study: Study, previous_trials: int) -> dict[str, Any]:
    """Return the figures of a study as plain values.

    ``previous_trials`` is the number of trials of earlier runs.
    """
    return {
        "study": study.optuna.study_name,
        "objectives": list(study.objectives),
        "points": study.space.most,
        "trials": study.finished,
        "trials_known": previous_trials,
        "infeasible": study.infeasible,
        "refused": study.refused,
        "best": [dict(_json(study, trial)) for trial in study.best],
        "importances": study.importances(),
    }


def _write_report(study: Study, previous_trials: int, path: str) -> None:
    """Write the report of a study, with the step of the best trial."""
    from irgraph.cli.html import write_page
    from irgraph.pages.search import tuned_page
    from irgraph.tuning.limits import FIGURES

    summary, best = _summary(study, previous_trials), study.best
    values = best[0].values if best else {}
    summary["texts"] = {name: FIGURES[name].text(value) for name, value in values.items()}
    trials = [
        {
            "trial": trial.number,
            "point": trial.point,
            "figures": trial.values,
            "broken": ", ".join(broken),
        }
        for trial, broken in study.tried
    ]
    step = study.space.prediction(best[0].point) if best else None
    write_page(tuned_page(summary, trials, step), path)


def _report(study: Study, previous_trials: int, json: bool) -> None:
    """Print the best trials, importances, and the numbers of refused and infeasible trials."""
    if json:
        write_json(_summary(study, previous_trials))
        return
    best, importances = study.best, study.importances()
    print_listing(
        "best trials (predicted, unvalidated)", [_row(t) for t in best[:MAX_LISTED_TRIALS]]
    )
    if len(best) > MAX_LISTED_TRIALS:
        omitted = len(best) - MAX_LISTED_TRIALS
        print_error(f"{omitted} more are as good in one of the objectives: --json lists all")
    rows = [
        {
            "choice": name,
            **{
                objective: f"{shares.get(name, 0):.1%}" for objective, shares in importances.items()
            },
        }
        for name in max(importances.values(), key=len, default={})
    ]
    if rows:
        print_listing("importances of the choices, over these trials (Optuna's)", rows)
    previous_text = f", {previous_trials} of them before" if previous_trials else ""
    print_error(f"{study.finished} trials{previous_text}, of at most {study.space.most:,} points")
    if study.infeasible:
        print_error(f"{study.infeasible} of them break a limit")
    _print_nearest(study)
    for reason, count in list(study.refused.items())[:MAX_REASONS]:
        print_error(f"{count} refused: {reason}")


def _print_nearest(study: Study) -> None:
    """Print by how much the nearest trial exceeds each limit, if no trial meets all limits."""
    from irgraph.tuning.limits import FIGURES, limit_text

    if study.nearest is None:
        return
    trial, shares = study.nearest
    print_error(f"no trial meets all limits; the nearest is trial {trial.number}:")
    for name, share in shares.items():
        value = FIGURES[name].text(trial.values[name]) if name in trial.values else "not known"
        verdict = f"breaks it by {share:.1%}" if share > 0 else "keeps it"
        print_error(f"  {name} {value}, {limit_text(name, study.space.limits[name])}: {verdict}")


def _row(trial: Trial) -> dict[str, str]:
    """Return a trial as cells."""
    from irgraph.tuning.limits import FIGURES

    figures = {name: FIGURES[name].text(value) for name, value in trial.values.items()}
    choices = ", ".join(f"{name} {value}" for name, value in trial.point.items())
    return {"trial": str(trial.number), **figures, "choices": choices}


def _json(study: Study, trial: Trial) -> Iterator[tuple[str, Any]]:
    yield "trial", trial.number
    yield "point", trial.point
    yield "figures", trial.values
    yield "script", study.space.script(trial.point)


def _write(study: Study, output: str) -> None:
    """Write the script of the best trial, the first if there are several."""
    from irgraph.diagnostics import fail
    from irgraph.tuning.limits import FIGURES

    if not study.best:
        raise fail(f"{output} is not written: no trial meets all limits", exit_code=1)
    best = study.best[0]
    figures = ", ".join(f"{name} {FIGURES[name].text(v)}" for name, v in best.values.items())
    comment = f"trial {best.number} of {study.finished}: {figures} (predicted, unvalidated)"
    write_result(study.space.script(best.point, comment), output)
