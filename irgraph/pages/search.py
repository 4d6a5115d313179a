"""The report of a study: the best variants, what mattered, and the best one's step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from irgraph.html import sections
from irgraph.html.page import Page
from irgraph.html.sections import Section
from irgraph.pages.prediction import about, prediction_sections, rests_on
from irgraph.predict.prediction import Prediction

KINDS = {"step.time": "us", "gpu.active": "us", "memory.peak": "bytes"}
"""Kinds of figures; others are numbers."""

FRONT = "best"
"""Group of the trials that nothing betters."""

SPAN = "Step time of the best variant, predicted, and its 90 % interval"

TRIALS_TEXT = "Trials with figures, as models predict them; refused ones have none."


def tuned_page(
    told: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], best: Prediction | None
) -> Page:
    """Return the report of a study.

    Args:
        told: its figures, as ``irgraph tune --json`` has them, and ``texts``: the figures of the
            best trial as texts.
        trials: all that have figures: ``trial``, ``point``, ``figures``, and ``broken``, the
            limits that it breaks, as a text.
        best: the best trial's step (of several the first), ``None`` where there is none.
    """
    summary = best.summary() if best is not None else None
    numbers = [*_best(told, summary), *_counts(told)]
    parts = [
        sections.headline(numbers, span_title=SPAN, **(rests_on(summary) if summary else {})),
        sections.notes(summary["warnings"] if summary else [], warning=True),
        _table("best", "Best variants", told["best"]),
        *_script(told),
        _scatter(told, trials),
        *_mattered(told["importances"]),
        *_refused(told["refused"]),
        _table("trials", "All trials with figures", trials, text=TRIALS_TEXT),
    ]
    if best is not None and summary is not None:
        parts += prediction_sections(best, summary)
    where = f"; the best: {about(summary)}" if summary else ""
    objectives = ", ".join(told["objectives"])
    return Page(told["study"], f"searched for {objectives} by models alone{where}", parts)


def _best(told: Mapping[str, Any], summary: Mapping[str, Any] | None) -> Iterator[dict[str, str]]:
    if summary is None:
        yield {
            "label": "best variant",
            "value": "none",
            "detail": "no trial meets all limits",
            "tone": "bad",
        }
        return
    for at, (name, text) in enumerate(told["texts"].items()):
        first = told["best"][0]
        which = f"trial {first['trial']}, predicted, unvalidated" if not at else ""
        yield {"label": name, "value": text, "detail": which}


def _counts(told: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    refused = sum(told["refused"].values())
    yield {
        "label": "trials",
        "value": f"{told['trials']:,}",
        "detail": f"of at most {told['points']:,} points",
    }
    yield {
        "label": "refused",
        "value": f"{refused:,}",
        "detail": f"{told['infeasible']:,} more break a limit",
    }


def _table(name: str, title: str, trials: Sequence[Mapping[str, Any]], text: str = "") -> Section:
    """Return trials as a table: their figures, then a column for each choice."""
    figures = list(dict.fromkeys(key for one in trials for key in one["figures"]))
    axes = list(dict.fromkeys(key for one in trials for key in one["point"]))
    columns = [("trial", "number"), *((key, KINDS.get(key, "number")) for key in figures)]
    columns += [(key, _kind(trials, key)) for key in axes]
    rows = [
        [
            one["trial"],
            *(one["figures"].get(key) for key in figures),
            *(one["point"].get(key) for key in axes),
        ]
        for one in trials
    ]
    if any(one.get("broken") for one in trials):
        columns.append(("breaks", "text"))
        rows = [[*row, one.get("broken", "")] for row, one in zip(rows, trials, strict=True)]
    return sections.table(name, title, columns, rows, text=text, bars=figures[:1])


def _kind(trials: Sequence[Mapping[str, Any]], axis: str) -> str:
    values = [one["point"][axis] for one in trials if axis in one["point"]]
    return "number" if all(isinstance(value, int | float) for value in values) else "text"


def _script(told: Mapping[str, Any]) -> list[Section]:
    if not told["best"]:
        return []
    text = "What irgraph opt -s runs, on the device and host that its comments name."
    return [sections.listing("script", "The best variant", told["best"][0]["script"], text=text)]


def _scatter(told: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> Section:
    """Return two objectives against each other, or one over the trials."""
    first, *others = told["objectives"]
    across = others[0] if others else "trial"
    best = {one["trial"] for one in told["best"]}
    points = [
        {
            "name": f"trial {one['trial']}: {_choices(one['point'])}",
            "group": FRONT
            if one["trial"] in best
            else "breaks a limit"
            if one["broken"]
            else "kept",
            "x": one["figures"].get(across, one["trial"]),
            "y": one["figures"].get(first),
            "front": bool(others) and one["trial"] in best,
        }
        for one in trials
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


def _mattered(importances: Mapping[str, Mapping[str, float]]) -> list[Section]:
    names = dict.fromkeys(name for shares in importances.values() for name in shares)
    if not names:
        return []
    rows = [[name, *(shares.get(name, 0.0) for shares in importances.values())] for name in names]
    columns = [("choice", "text"), *((what, "share") for what in importances)]
    text = "Optuna's importances, of the trials that were made; a sampler chose them."
    return [
        sections.table(
            "mattered", "What mattered", columns, rows, text=text, bars=list(importances)
        )
    ]


def _refused(refused: Mapping[str, int]) -> list[Section]:
    columns = (("why", "text"), ("trials", "number"))
    title = "What was refused"
    return [sections.table("refused", title, columns, refused.items())] if refused else []
