"""The report of a rewrite: its changes, the reasons why they are legal, and their effect."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from irgraph.html import sections
from irgraph.html.page import Page
from irgraph.html.sections import Section
from irgraph.ir.graph import Graph
from irgraph.language.running.report import Entry
from irgraph.manage.stage import Outcome
from irgraph.pages.breakdowns import SIDES
from irgraph.pages.difference import (
    changes,
    difference_headline,
    difference_sections,
    remarks,
)
from irgraph.predict.difference import Difference
from irgraph.report.structure import group_changes, structural_diff
from irgraph.schedule.memory.peak import peak_memory

MAX_REASONS = 4
"""Maximum number of reasons of one statement in a table, which also counts the others."""


def rewrite_page(
    before: Graph,
    outcome: Outcome,
    *,
    steps: Sequence[tuple[str, float, int]] = (),
    check_lines: Sequence[str] = (),
    difference: Difference | None = None,
) -> Page:
    """Return the report of a pipeline of passes and scripts.

    Args:
        before: the original model.
        outcome: the result of the pipeline.
        steps: each stage's label, step time (us) and peak memory (bytes), the start first.
        check_lines: results of running both models.
        difference: both predicted on a device, if one was named.
    """
    after, figures = outcome.graph, difference.summary() if difference is not None else None
    groups = group_changes(difference.changes if difference else structural_diff(before, after))
    parts = [
        difference_headline(difference, figures)
        if difference is not None and figures
        else _headline(before, outcome)
    ]
    parts += [sections.notes(check_lines)] if check_lines else []
    parts += remarks(figures) if figures else []
    parts += [_statements_table(outcome), *_refused_table(outcome), *_stages_table(steps)]
    parts.append(changes(groups, timed=difference is not None))
    parts += difference_sections(difference, figures) if difference and figures else []
    about = f"rewritten by {', '.join(step.label for step in outcome.applied) or 'nothing'}"
    device = f", predicted on {figures['device']}, host {figures['host']}" if figures else ""
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


def _statements_table(outcome: Outcome) -> Section:
    rows = [
        (
            stage,
            entry.summary,
            _joined_reasons((*entry.legal, *entry.unproven)),
            _joined_reasons(entry.assumptions),
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


def _refused_table(outcome: Outcome) -> list[Section]:
    rows = [
        (stage, str(entry.statement), str(refused))
        for stage, entry in _entries(outcome)
        for refused in (*entry.refused, *entry.warnings)
    ]
    if not rows:
        return []
    columns = [(name, "text") for name in ("stage", "statement", "why not")]
    return [sections.table("refused", "What was not rewritten, and warnings", columns, rows)]


def _stages_table(steps: Sequence[tuple[str, float, int]]) -> list[Section]:
    """Return the effect of each stage, if a device was named."""
    rows = [
        (label, last, time, time - last, peak)
        for (_, last, _), (label, time, peak) in pairwise(steps)
    ]
    columns = [("stage", "text"), ("before", "us"), ("after", "us"), ("change", "change")]
    columns.append(("peak memory", "bytes"))
    return (
        [sections.table("stages", "What each stage is worth", columns, rows, bars=SIDES)]
        if rows
        else []
    )


def _joined_reasons(reasons: Sequence[str]) -> str:
    """Return distinct reasons as one text, each with the number of its occurrences."""
    counts = {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}
    texts = [
        f"{reason} ({count} times)" if count > 1 else reason for reason, count in counts.items()
    ]
    more = [f"and {len(texts) - MAX_REASONS} more"] if len(texts) > MAX_REASONS else []
    return "; ".join([*texts[:MAX_REASONS], *more])
