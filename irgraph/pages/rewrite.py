"""The report of a rewrite: what was done, why that was legal, and what it is worth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from irgraph.html import sections
from irgraph.html.page import Page
from irgraph.html.sections import Section
from irgraph.ir.graph import Graph
from irgraph.language.running.report import Entry
from irgraph.manage.stage import Outcome
from irgraph.pages.breakdowns import BESIDE
from irgraph.pages.difference import (
    changes,
    difference_headline,
    difference_sections,
    remarks,
)
from irgraph.predict.difference import Difference
from irgraph.report.structure import grouped, structural_diff
from irgraph.schedule.memory import peak_memory

SHOWN = 4
"""Reasons of one statement that a table lists; how many more there are, it says."""


def rewrite_page(
    before: Graph,
    outcome: Outcome,
    *,
    steps: Sequence[tuple[str, float, int]] = (),
    checked: Sequence[str] = (),
    difference: Difference | None = None,
) -> Page:
    """Return the report of a pipeline of passes and scripts.

    Args:
        before: the model that it began with.
        outcome: what it did.
        steps: each stage's label, step time (us) and peak memory (bytes), the start first.
        checked: what running both models showed, as lines.
        difference: both predicted on a device, if one was named.
    """
    after, found = outcome.graph, difference.summary() if difference is not None else None
    shown = grouped(difference.changes if difference else structural_diff(before, after))
    parts = [
        difference_headline(difference, found)
        if difference is not None and found
        else _headline(before, outcome)
    ]
    parts += [sections.notes(checked)] if checked else []
    parts += remarks(found) if found else []
    parts += [_statements(outcome), *_refused(outcome), *_stages(steps)]
    parts.append(changes(shown, timed=difference is not None))
    parts += difference_sections(difference, found) if difference and found else []
    about = f"rewritten by {', '.join(step.label for step in outcome.applied) or 'nothing'}"
    device = f", predicted on {found['device']}, host {found['host']}" if found else ""
    return Page(before.name, about + device, parts)


def _headline(before: Graph, outcome: Outcome) -> Section:
    reports = [step.report for step in outcome.applied]
    peaks = [peak_memory(graph).peak / 2**20 for graph in (before, outcome.graph)]
    numbers = [
        {"label": "ops removed", "value": str(sum(report.replaced for report in reports))},
        {"label": "ops added", "value": str(sum(report.made for report in reports))},
        {"label": "refused", "value": str(sum(len(report.refused) for report in reports))},
        {
            "label": "peak memory of tensors",
            "value": f"{peaks[1]:,.1f} MiB",
            "detail": f"before: {peaks[0]:,.1f} MiB",
        },
        {"label": "step time", "value": "not predicted", "detail": "name a --device"},
    ]
    return sections.headline(numbers)


def _entries(outcome: Outcome) -> list[tuple[str, Entry]]:
    return [
        (step.label, entry)
        for step in outcome.applied
        for entry in step.report.entries
        if not entry.spare
    ]


def _statements(outcome: Outcome) -> Section:
    rows = [
        (
            stage,
            entry.summary,
            _several(entry.legal),
            _several(entry.assumptions),
            str(entry.statement),
        )
        for stage, entry in _entries(outcome)
    ]
    names = ("stage", "what it did", "why that is legal", "assumed", "statement")
    text = "Each change was held against the step's data dependences before it was made."
    return sections.table(
        "rewrites",
        "What was rewritten, and why that is legal",
        [(name, "text") for name in names],
        rows,
        text=text,
    )


def _refused(outcome: Outcome) -> list[Section]:
    rows = [
        (stage, str(entry.statement), str(refused))
        for stage, entry in _entries(outcome)
        for refused in (*entry.refused, *entry.warnings)
    ]
    if not rows:
        return []
    columns = [(name, "text") for name in ("stage", "statement", "why not")]
    return [sections.table("refused", "What was not rewritten, and warnings", columns, rows)]


def _stages(steps: Sequence[tuple[str, float, int]]) -> list[Section]:
    """Return what each stage is worth, where a device was named."""
    rows = [
        (label, last, time, time - last, peak)
        for (_, last, _), (label, time, peak) in pairwise(steps)
    ]
    columns = [("stage", "text"), ("before", "us"), ("after", "us"), ("change", "change")]
    columns.append(("peak memory", "bytes"))
    return (
        [sections.table("stages", "What each stage is worth", columns, rows, bars=BESIDE)]
        if rows
        else []
    )


def _several(reasons: Sequence[str]) -> str:
    """Return different reasons as one text, each with how often it was given."""
    counts = {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}
    texts = [
        f"{reason} ({count} times)" if count > 1 else reason for reason, count in counts.items()
    ]
    more = [f"and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return "; ".join([*texts[:SHOWN], *more])
