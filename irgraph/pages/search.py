"""The report of a study: the best variants, importances of choices, and the best one's step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from irgraph.html import sections
from irgraph.html.page import Page
from irgraph.html.sections import Section
from irgraph.pages.prediction import about_prediction, headline_details, prediction_sections
from irgraph.predict.prediction import Prediction

KINDS = {"step.time": "us", "gpu.active": "us", "memory.peak": "bytes"}
"""Kinds of figures; others are numbers."""

FRONT = "best"
"""Group of the trials that no other trial dominates."""

SPAN = "Step time of the best variant, predicted, and its 90 % interval"

TRIALS_TEXT = "Trials with figures, as models predict them; refused ones have none."


def tuned_page(
    figures: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], best: Prediction | None
) -> Page:
    """Return the report of a study.

    Args:
        figures: as ``irgraph tune --json`` has them, and ``texts``: the figures of the best trial
            as texts.
        trials: all trials with figures: ``trial``, ``point``, ``figures``, and ``broken``, the
            limits that it breaks, as a text.
        best: the best trial's step (of several the first), ``None`` if there is none.
    """
    summary = best.summary() if best is not None else None
    numbers = [*_best(figures, summary), *_counts(figures)]
    parts = [
        sections.headline(
            numbers, span_title=SPAN, **(headline_details(summary) if summary else {})
        ),
        sections.notes(summary["warnings"] if summary else [], warning=True),
        _table("best", "Best variants", figures["best"]),
        *_script(figures),
        _scatter(figures, trials),
        *_importances_table(figures["importances"]),
        *_refused_table(figures["refused"]),
        _table("trials", "All trials with figures", trials, text=TRIALS_TEXT),
    ]
    if best is not None and summary is not None:
        parts += prediction_sections(best, summary)
    suffix = f"; the best: {about_prediction(summary)}" if summary else ""
    objectives = ", ".join(figures["objectives"])
    return Page(figures["study"], f"searched for {objectives} by models alone{suffix}", parts)


def _best(
    figures: Mapping[str, Any], summary: Mapping[str, Any] | None
) -> Iterator[dict[str, str]]:
    if summary is None:
        yield {
            "label": "best variant",
            "value": "none",
            "detail": "no trial meets all limits",
            "tone": "bad",
        }
        return
    for index, (name, text) in enumerate(figures["texts"].items()):
        first = figures["best"][0]
        detail = f"trial {first['trial']}, predicted, unvalidated" if not index else ""
        yield {"label": name, "value": text, "detail": detail}


def _counts(figures: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    refused = sum(figures["refused"].values())
    yield {
        "label": "trials",
        "value": f"{figures['trials']:,}",
        "detail": f"of at most {figures['points']:,} points",
    }
    yield {
        "label": "refused",
        "value": f"{refused:,}",
        "detail": f"{figures['infeasible']:,} more break a limit",
    }


def _table(name: str, title: str, trials: Sequence[Mapping[str, Any]], text: str = "") -> Section:
    """Return trials as a table: their figures, then a column for each choice."""
    figure_names = list(dict.fromkeys(key for trial in trials for key in trial["figures"]))
    axes = list(dict.fromkeys(key for trial in trials for key in trial["point"]))
    columns = [("trial", "number"), *((key, KINDS.get(key, "number")) for key in figure_names)]
    columns += [(key, _kind(trials, key)) for key in axes]
    rows = [
        [
            trial["trial"],
            *(trial["figures"].get(key) for key in figure_names),
            *(trial["point"].get(key) for key in axes),
        ]
        for trial in trials
    ]
    if any(trial.get("broken") for trial in trials):
        columns.append(("breaks", "text"))
        rows = [[*row, trial.get("broken", "")] for row, trial in zip(rows, trials, strict=True)]
    return sections.table(name, title, columns, rows, text=text, bars=figure_names[:1])


def _kind(trials: Sequence[Mapping[str, Any]], axis: str) -> str:
    values = [trial["point"][axis] for trial in trials if axis in trial["point"]]
    return "number" if all(isinstance(value, int | float) for value in values) else "text"


def _script(figures: Mapping[str, Any]) -> list[Section]:
    if not figures["best"]:
        return []
    text = "What irgraph opt -s runs, on the device and host that its comments name."
    return [sections.listing("script", "The best variant", figures["best"][0]["script"], text=text)]


def _scatter(figures: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> Section:
    """Return two objectives against each other, or one over the trials."""
    first, *others = figures["objectives"]
    across = others[0] if others else "trial"
    best = {trial["trial"] for trial in figures["best"]}
    points = [
        {
            "name": f"trial {trial['trial']}: {_choices(trial['point'])}",
            "group": FRONT
            if trial["trial"] in best
            else "breaks a limit"
            if trial["broken"]
            else "kept",
            "x": trial["figures"].get(across, trial["trial"]),
            "y": trial["figures"].get(first),
            "front": bool(others) and trial["trial"] in best,
        }
        for trial in trials
    ]
    title = f"{first} against {across}" if others else f"{first} of each trial"
    return sections.scatter(
        "search",
        title,
        points,
        (across, KINDS.get(across, "number")),
        (first, KINDS.get(first, "number")),
    )


def _choices(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in point.items())


def _importances_table(importances: Mapping[str, Mapping[str, float]]) -> list[Section]:
    names = dict.fromkeys(name for shares in importances.values() for name in shares)
    if not names:
        return []
    rows = [[name, *(shares.get(name, 0.0) for shares in importances.values())] for name in names]
    columns = [("choice", "text"), *((objective, "share") for objective in importances)]
    text = "Optuna's importances, of the trials that were made; a sampler chose them."
    return [
        sections.table(
            "mattered", "What mattered", columns, rows, text=text, bars=list(importances)
        )
    ]


def _refused_table(refused: Mapping[str, int]) -> list[Section]:
    columns = (("why", "text"), ("trials", "number"))
    title = "What was refused"
    return [sections.table("refused", title, columns, refused.items())] if refused else []
