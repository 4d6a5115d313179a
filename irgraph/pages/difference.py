"""The report of the changes between two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from irgraph.html import sections
from irgraph.html.page import Page
from irgraph.html.sections import Section
from irgraph.pages.breakdowns import SIDES, pairs, what_ifs
from irgraph.pages.memory import memory_over_time
from irgraph.pages.prediction import provenance
from irgraph.pages.slices import Slices
from irgraph.pages.timelines import add_path, add_timeline
from irgraph.predict.difference import Difference
from irgraph.predict.figures import coverage
from irgraph.predict.figures import what_ifs as of_timeline
from irgraph.predict.validation import UNVALIDATED, validation_text
from irgraph.report.console import bytes_text, time_text
from irgraph.report.structure import KINDS, ChangeGroup
from irgraph.schedule.intervals import by_cause_name

PATH_TEXT = "Both critical paths on one clock: what is gone, what is new, and what is exposed now."
TIMELINE_TEXT = "Both steps from their starts; what is on the critical path has a dark edge."


def difference_page(
    difference: Difference, groups: Sequence[ChangeGroup], summary: Mapping[str, Any] | None = None
) -> Page:
    """Return the report of a difference.

    ``groups`` are its changes (``report.structure``), ``summary`` its figures if available.
    """
    figures = difference.summary() if summary is None else summary
    names = " → ".join(Path(name).name for name in figures["models"])
    about = f"predicted on {figures['device']}, host {figures['host']}"
    parts = [
        difference_headline(difference, figures),
        *remarks(figures),
        changes(groups, timed=True),
    ]
    return Page(names, about, [*parts, *difference_sections(difference, figures)])


def structure_page(names: Sequence[str], groups: Sequence[ChangeGroup]) -> Page:
    """Return the report of the changes, without a device and so without times."""
    title = " → ".join(Path(name).name for name in names)
    return Page(title, "structure alone", [changes(groups, timed=False)])


def difference_headline(difference: Difference, summary: Mapping[str, Any]) -> Section:
    """Return the change of the step time and both steps, with their intervals and provenance."""
    before, after = summary["figures"]["step_time_us"]
    change = after - before
    low, high = summary["step_time_change_interval_us"]
    peaks = summary["memory_peak_bytes"]
    share = f"{change / before:+.1%}" if before else ""
    tone = "good" if high < 0 else "bad" if low > 0 else ""
    within = f"90 % interval {time_text(low)} to {time_text(high)}"
    sides = (difference.before, difference.after)
    ends = [" to ".join(map(time_text, prediction.interval)) for prediction in sides]
    numbers = [
        {
            "label": "change of the step time",
            "value": signed(change),
            "detail": within,
            "tone": tone,
        },
        {"label": "of the step", "value": share, "tone": tone},
        {"label": "step time before", "value": time_text(before), "detail": ends[0]},
        {"label": "step time after", "value": time_text(after), "detail": ends[1]},
        {
            "label": "peak memory of tensors",
            "value": bytes_text(peaks[1]),
            "detail": f"before: {bytes_text(peaks[0])}",
        },
    ]
    measured = summary["validation"].get("measured_change_us")
    return sections.headline(
        numbers,
        span={"low": low, "value": change, "high": high, "measured": measured},
        provenance=provenance(coverage(difference.after.kernels())),
    )


def remarks(summary: Mapping[str, Any]) -> list[Section]:
    """Return the notes on a difference: its validation, its assumptions, and warnings."""
    lines = [validation_text(summary["validation"]), *summary["collectives"]]
    lines += [f"rests on: {reason}" for reason in summary["assumptions"]]
    warnings = list(summary["warnings"])
    for name, unknown in zip(SIDES, summary["unknown"], strict=True):
        count = sum(unknown["ops"].values())
        warnings += [f"{count} ops {name} have no cost model"] if count else []
    return [sections.notes(warnings, warning=True), sections.notes(lines)]


def changes(groups: Sequence[ChangeGroup], *, timed: bool) -> Section:
    """Return the table of ops that were added, removed, moved or changed."""
    rows = []
    for group in groups:
        before, after = group.times
        description = f"{group.kind} {group.detail}".strip()
        times = (before or None, after or None, after - before) if timed else ()
        rows.append(
            (KINDS[group.kind], group.name, description, group.location, len(group.changes), *times)
        )
    columns = [
        ("±", "text"),
        ("op", "text"),
        ("what", "text"),
        ("where", "text"),
        ("count", "number"),
    ]
    columns += [("before", "us"), ("after", "us"), ("change", "change")] if timed else []
    text = "Times are device work of these ops." if timed else ""
    return sections.table("changes", "What changed", columns, rows, text=text)


def difference_sections(difference: Difference, summary: Mapping[str, Any]) -> list[Section]:
    """Return paths, timelines and breakdowns of both steps, and the memory of each."""
    sides = dict(zip(SIDES, (difference.before, difference.after), strict=True))
    paths, lines = Slices(), Slices()
    for name, side in sides.items():
        add_path(paths, side.path, name)
        add_timeline(lines, side.timeline, side.path, name)
    memory = {name: memory_over_time(side) for name, side in sides.items()}
    charts = {name: part for name, part in memory.items() if part is not None}
    figures = {
        name.removesuffix("_us").replace("_", " "): times
        for name, times in summary["figures"].items()
    }
    breakdown = {
        "by cause": pairs(
            "path-by-cause",
            "critical path by cause",
            "cause",
            by_cause_name(summary["critical_path_us"]),
        ),
        "device work by family": pairs(
            "work-by-family", "device work by kernel family", "family", summary["kernels_us"]
        ),
        "the step": pairs("step", "the step", "figure", figures),
    }
    return [
        sections.slices("path", "Critical paths", paths.record(), text=PATH_TEXT, tall=True),
        sections.slices("timeline", "Timelines", lines.record(), text=TIMELINE_TEXT),
        sections.tabs("breakdown", "Where the time went", breakdown),
        what_ifs(of_timeline(difference.after.timeline), UNVALIDATED),
        *([sections.tabs("memory", "Memory over the step", charts)] if charts else []),
    ]


def signed(change: float) -> str:
    """Return a change of a time with its sign."""
    return f"{'+' if change > 0 else ''}{time_text(change)}"
