"""Recorded steps as slices of a report: the last usual step of each rank, and its critical path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from irgraph.capture.kineto.events.steps import TraceStep
from irgraph.capture.kineto.events.tree import Tree
from irgraph.html import sections
from irgraph.html.sections import Section
from irgraph.pages.slices import Slices, add_events
from irgraph.pages.timelines import path_slices
from irgraph.replay.recorded_step import RecordedStep
from irgraph.replay.replay import select_typical_steps
from irgraph.schedule.critical_path import critical_path
from irgraph.schedule.timeline import Timeline

MAX_RANKS = 8
"""Maximum number of ranks whose steps are shown."""

TEXT = "The last usual step as it was recorded, from its start: calls on threads, work on streams."

BOTH_TEXT = "The last usual step of each, as it was recorded; both from their starts."

PATH_TEXT = (
    "What the last usual step waited for, one thing after the other: found by simulating the step "
    "with its own recorded times, so that the path may differ from the measured step by a little."
)


def last_steps(trees: Sequence[Tree]) -> Iterator[tuple[str, Tree, TraceStep]]:
    """Yield a name, the trace and its last usual step, for each trace that has one."""
    names: set[str] = set()
    for number, tree in enumerate(trees):
        typical_steps = select_typical_steps(tree)
        name = f"rank {tree.trace.rank}"
        name = name if name not in names else f"trace {number}"
        names.add(name)
        if typical_steps:
            yield name, tree, typical_steps[-1]


def recorded_slices(trees: Sequence[Tree]) -> dict[str, Any]:
    """Return the last usual step of each rank as slices, rank by rank, all from zero."""
    slices = Slices()
    steps = list(last_steps(trees))[:MAX_RANKS]
    for name, tree, step in steps:
        group = name if len(steps) > 1 else ""
        events = RecordedStep(tree, step).slices(group or "measured")
        add_events(slices, events, group or "measured", group)
    return slices.record()


def compared_sections(sides: Mapping[str, Sequence[Tree]]) -> list[Section]:
    """Return the last usual steps of the first rank of each side, by name, on one clock."""
    slices = Slices()
    for side, trees in sides.items():
        for _, tree, step in islice(last_steps(trees), 1):
            events = RecordedStep(tree, step).slices(side)
            add_events(slices, events, side, side)
    record = slices.record()
    timeline = sections.slices("timeline", "Timelines", record, text=BOTH_TEXT)
    return [timeline] if record["tracks"] else []


def recorded_sections(trees: Sequence[Tree], replayed: Sequence[Timeline | None]) -> list[Section]:
    """Return the critical path of the first rank's last usual step, and all ranks' timelines.

    ``replayed`` has each trace's last usual step, simulated with its own times.
    """
    last_step = next(last_steps(trees), None)
    if last_step is None:
        return []
    name, tree, _ = last_step
    timeline = sections.slices("timeline", "Timeline", recorded_slices(trees), text=TEXT)
    simulated = next(filter(None, replayed), None)
    if simulated is None or not tree.trace.on_device.any():
        return [timeline]
    has_several = len({id(tree) for tree in trees}) > 1
    path = path_slices(critical_path(simulated), name if has_several else "")
    return [sections.slices("path", "Critical path", path, text=PATH_TEXT, tall=True), timeline]
