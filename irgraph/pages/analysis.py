"""Reports of recorded steps: breakdowns of their time, and changes between two traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from irgraph.analyze import Analysis
from irgraph.analyze.compare import TimeChange
from irgraph.analyze.roofline import works_of
from irgraph.backend import backend
from irgraph.capture.kineto.events.tree import Tree
from irgraph.html import sections
from irgraph.html.page import Page
from irgraph.html.sections import Section
from irgraph.pages.breakdowns import SIDES
from irgraph.pages.recording import compared_sections, recorded_sections
from irgraph.pages.roofline import roof_sections
from irgraph.pages.timelines import longest
from irgraph.report.console import time_text

TABS = {
    "family": "by family", "op": "by operator", "kernel": "by kernel", "module": "by module",
    "phase": "by phase", "annotation": "by annotation",
}  # fmt: skip

TITLES = {
    "idle": "Device idle, by what the host did",
    "host": "Time of the host by operator",
    "collectives_by_kind": "Collectives",
    "stragglers": "Ranks in collectives, a step",
    "attribution": "Attribution of device events",
}
"""Titles of the tables of an analysis."""


def analysis_page(
    result: Analysis, trees: Sequence[Tree], more: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Page:
    """Return the report of an analysis; ``more`` are tables that were requested, by name."""
    tables = result.tables()
    recorded = recorded_sections(trees, result.last)
    parts = [_headline(result, recorded), *_repairs(trees), *recorded]
    parts += [
        _breakdown(tables),
        sections.records("steps", "Steps", tables["steps"], bars=("step",)),
    ]
    for name, title in TITLES.items():
        if tables[name]:
            parts.append(sections.records(name, title, tables[name], bars=("time", "self")))
    parts += _roofline(trees)
    parts += [sections.records(name, name.replace("_", " "), rows) for name, rows in more.items()]
    sources = dict.fromkeys(Path(tree.trace.source).name for tree in trees)
    return Page(", ".join(sources), f"recorded on {_card_names(trees)}", parts)


def comparison_page(
    names: Sequence[str],
    figures: Sequence[TimeChange],
    parts: Sequence[TimeChange],
    key: str,
    sides: Sequence[Sequence[Tree]],
) -> Page:
    """Return the report of two traces: the mean usual step of each, and its parts by ``key``."""
    trees = [tree for side in sides for tree in side]
    step = figures[0]
    share = f"{step.delta / step.before:+.1%}" if step.before else ""
    tone = "bad" if step.delta > 0 else "good"
    numbers = [
        {
            "label": "change of the mean usual step",
            "tone": tone,
            "value": _signed_time(step.delta),
            "detail": f"{share}, as recorded",
        },
        {"label": "before", "value": time_text(step.before)},
        {"label": "after", "value": time_text(step.after)},
    ]
    page_sections = [
        sections.headline(numbers),
        *_repairs(trees),
        _change_table("step", "Mean usual step", figures),
    ]
    subject = "time of the host" if key == "host" else "device work"
    change = _signed_time(sum(part.delta for part in parts))
    total = f"{subject[0].upper()}{subject[1:]}: {change} a step in all."
    page_sections.append(
        _change_table(key, f"Time a step by {key}, largest change first", parts, total)
    )
    page_sections += compared_sections(dict(zip(SIDES, sides, strict=True)))
    title = " → ".join(Path(name).name for name in names)
    return Page(title, f"recorded on {_card_names(trees)}", page_sections)


def _change_table(name: str, title: str, changes: Sequence[TimeChange], text: str = "") -> Section:
    columns = [("name", "text"), ("before", "us"), ("after", "us"), ("change", "change")]
    rows = [[c.name, c.before, c.after, c.delta] for c in changes]
    if any(c.calls_before or c.calls_after for c in changes):
        columns += [("calls before", "number"), ("calls after", "number"), ("what", "text")]
        rows = [
            [*row, c.calls_before, c.calls_after, c.status]
            for row, c in zip(rows, changes, strict=True)
        ]
    return sections.table(name, title, columns, rows, text=text, bars=SIDES)


def _signed_time(change: float) -> str:
    return f"{'+' if change > 0 else ''}{time_text(change)}"


def _card_names(trees: Sequence[Tree]) -> str:
    names = dict.fromkeys(tree.trace.device_name for tree in trees)
    return ", ".join(filter(None, names)) or "a device that the trace does not name"


def _repairs(trees: Sequence[Tree]) -> list[Section]:
    lines = [line for tree in trees for line in tree.trace.health.reasons()]
    return [sections.notes(lines, warning=True)] if lines else []


def _headline(result: Analysis, recorded: Sequence[Section]) -> Section:
    typical = [step for step in result.steps if not step.left_out]
    steps = f"mean of {len(typical)} usual of {len(result.steps)} steps, as recorded"
    if not typical:
        return sections.headline([{"label": "step time", "value": "–", "detail": steps}])
    step_time = mean(step.time for step in typical)
    numbers = [{"label": "step time", "value": time_text(step_time), "detail": steps}]
    if all(step.on_device for step in typical):
        active = mean(step.active for step in typical)
        numbers += [
            {
                "label": "GPU active",
                "value": f"{active / step_time:.1%}" if step_time else "–",
                "detail": f"idle {time_text(step_time - active)}",
            },
            {
                "label": "exposed communication",
                "value": time_text(mean(step.exposed for step in typical)),
            },
        ]
    if result.covered is not None:
        numbers.append({"label": "device time within the steps", "value": f"{result.covered:.1%}"})
    paths = [part for part in recorded if part["id"] == "path"]
    return sections.headline(numbers, longest=longest(paths[0]) if paths else ())


def _breakdown(tables: Mapping[str, list[dict[str, Any]]]) -> Section:
    parts = {
        label: sections.records(f"work-{key}", f"device work {label}", tables[key], bars=("time",))
        for key, label in TABS.items()
        if {row[key] for row in tables[key]} - {"(no module)", "(no annotation)"}
    }
    if not parts:
        return sections.notes(["the trace has no device work"])
    text = "Device work a step, means over the usual steps of all ranks; work may overlap."
    return sections.tabs("breakdown", "Where the device time goes", parts, text=text)


def _roofline(trees: Sequence[Tree]) -> list[Section]:
    names = {backend().device_of_card(tree.trace.device_name) for tree in trees}
    if len(names) != 1 or "" in names:
        return []
    works, steps = works_of(trees)
    return roof_sections(works, backend().device(names.pop()), max(1, steps)) if works else []
