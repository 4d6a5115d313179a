"""Analysis of traces, one per rank: times, utilisation, breakdowns, communication, idle time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct

from irgraph.analyze.collectives import by_kind, collectives, stragglers
from irgraph.analyze.figures import HEADINGS, StepFigures
from irgraph.analyze.idle import idle_causes
from irgraph.analyze.intervals import intersection, length, union
from irgraph.capture.kineto.events.families import COMMUNICATION, family_of
from irgraph.capture.kineto.events.steps import TraceStep
from irgraph.capture.kineto.events.tree import PHASES, Tree, device_time, innermost_chosen
from irgraph.capture.kineto.reading.trace import Array, EventKind, Integers
from irgraph.html.fragments import table_html
from irgraph.replay.replay import Replayer, build_replayer
from irgraph.report.console import time_text
from irgraph.report.plots import Plot
from irgraph.schedule.timeline import Timeline

US = 1000
GROUPINGS = ("op", "kernel", "family", "module", "phase", "annotation")
"""Keys by which device work is grouped."""

MAX_FAMILIES = 12
"""Maximum number of families in a notebook."""

NO_ANNOTATION = "(no annotation)"

NO_STEP_LABELS = (
    "(launched outside the steps)",
    "(launched before the recording)",
    "(launch not in the trace)",
)
"""Lines of breakdowns for device work in the steps that none of their calls launched."""

_RESERVED_PREFIXES = ("ProfilerStep#", "nn.Module: ", "module::", "irgraph.module#")
"""Prefixes of annotations of steps and modules."""


class Analysis(Struct, frozen=True):
    """The analysis of some traces.

    Attributes:
        steps: figures of every step of every rank; incomplete steps are only included here.
        breakdowns: for each of ``op``, ``kernel``, ``family``, ``module``, ``phase`` and
            ``annotation``, microseconds of device work and number of events per step, longest
            first; means over the typical steps of all ranks. An annotation is the innermost
            range of the user around the launch.
        host: by operator, its own host time per step, its host time including all operators below
            it, and its calls per step; microseconds, means over the typical steps of all ranks.
        idle: microseconds per step without work on any stream, by cause.
        collectives: size, bandwidth, waiting and transfer of each collective; waiting is known only
            with traces of several ranks.
        collectives_by_kind: means of these figures by process group, kind and size.
        stragglers: by rank, microseconds per step that it waits in collectives, and that other
            ranks wait for it.
        orphans: device events without an operator, by cause.
        repairs: repairs of the traces, as lines of text.
        covered: share of all device time within the steps; ``None`` without device work.
        last: for each trace, its last typical step, simulated with its own recorded times;
            ``None`` if it has no typical step.
    """

    steps: list[StepFigures]
    breakdowns: dict[str, dict[str, tuple[float, float]]]
    idle: dict[str, float]
    collectives: list[dict[str, Any]]
    orphans: dict[str, int]
    repairs: tuple[str, ...] = ()
    covered: float | None = None
    host: Mapping[str, tuple[float, float, float]] = MappingProxyType({})
    collectives_by_kind: Sequence[dict[str, Any]] = ()
    stragglers: Sequence[dict[str, Any]] = ()
    last: tuple[Timeline | None, ...] = ()

    def plot(self) -> Plot:
        """Draw step times, idle time by cause, and device work (needs matplotlib)."""
        from irgraph.analyze.plots import draw

        return draw(self.steps, self.idle, self.breakdowns)

    def _repr_html_(self) -> str:
        """Return the steps and the longest families of kernels as HTML for a notebook."""
        families = list(self.breakdowns["family"].items())[:MAX_FAMILIES]
        work = [(name, time_text(us), f"{count:g}") for name, (us, count) in families]
        steps = table_html("steps", [step.cells() for step in self.steps], HEADINGS)
        head = ("family", "time a step", "events a step")
        return steps + table_html("device work by kernel family", work, head)

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "steps": [step.row() for step in self.steps],
            "breakdown": {
                grouping: {
                    key: {"us": round(us, 3), "events": round(count, 2)}
                    for key, (us, count) in rows.items()
                }
                for grouping, rows in self.breakdowns.items()
            },
            "idle_us": {cause: round(us, 3) for cause, us in self.idle.items()},
            "collectives": self.collectives,
            "collectives_by_kind": list(self.collectives_by_kind),
            "stragglers": list(self.stragglers),
            "orphans": self.orphans,
            "device_time_within_steps": self.covered,
            "host": {
                name: {
                    "self_us": round(self_us, 3),
                    "us": round(total_us, 3),
                    "calls": round(calls, 2),
                }
                for name, (self_us, total_us, calls) in self.host.items()
            },
        }

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return every table by name, as a list of plain rows for a DataFrame.

        All rows of a table have the same keys; times are microseconds per step (``_us``).
        """
        breakdowns = {
            grouping: _shares(grouping, rows) for grouping, rows in self.breakdowns.items()
        }
        idle = [{"cause": cause, "us": round(us, 3)} for cause, us in self.idle.items()]
        as_json = self.as_json()
        host = [{"op": name, **row} for name, row in as_json["host"].items()]
        return {
            "steps": as_json["steps"],
            **breakdowns,
            "idle": idle,
            "host": host,
            "collectives": self.collectives,
            "collectives_by_kind": as_json["collectives_by_kind"],
            "stragglers": as_json["stragglers"],
            "attribution": [{"device_events": k, "count": n} for k, n in self.orphans.items()],
        }


def _shares(grouping: str, rows: Mapping[str, tuple[float, float]]) -> list[dict[str, Any]]:
    total = sum(us for us, _ in rows.values()) or 1.0
    return [
        {
            grouping: key,
            "us": round(us, 3),
            "share": round(us / total, 6),
            "events": round(count, 2),
        }
        for key, (us, count) in rows.items()
    ]


def analyze(trees: Sequence[Tree]) -> Analysis:
    """Return the analysis of traces, one per rank."""
    replayers = [build_replayer(tree) for tree in trees]
    figures = [_figures(replayer, step) for replayer in replayers for step in replayer.tree.steps]
    time_within_steps, device_total = (
        sum(times) for times in zip(*map(device_time, trees), strict=True)
    )
    step_count = sum(len(replayer.typical_steps) for replayer in replayers) or 1
    matched = collectives(replayers)
    idle, last_timelines = idle_causes(replayers)
    return Analysis(
        figures,
        {grouping: _breakdown(replayers, grouping, step_count) for grouping in GROUPINGS},
        idle,
        [collective.row() for collective in matched],
        _orphans(trees),
        tuple(line for tree in trees for line in tree.trace.health.repairs()),
        time_within_steps / device_total if device_total else None,
        _host(replayers, step_count),
        by_kind(matched, max(len(replayer.typical_steps) for replayer in replayers)),
        stragglers(matched),
        last_timelines,
    )


def families(tree: Tree, rows: Iterable[int]) -> list[str]:
    """Return the family of each device event."""
    kinds = tree.trace.columns["kind"]
    return [family_of(tree.trace.text(row), int(kinds[row])) for row in rows]


def _figures(replayer: Replayer, step: TraceStep) -> StepFigures:
    tree = replayer.tree
    rows = replayer.work.rows[replayer.work.within(step)]
    starts = np.clip(tree.trace.columns["start"][rows], step.start, step.end)
    ends = np.clip(tree.trace.end[rows], step.start, step.end)
    communicates = np.array([f == COMMUNICATION for f in families(tree, rows.tolist())], bool)
    copies = tree.trace.columns["kind"][rows] != EventKind.KERNEL
    computes = ~communicates & ~copies
    computation = union(starts[computes], ends[computes])
    communication = union(starts[communicates], ends[communicates])
    return StepFigures(
        tree.trace.rank,
        step.number,
        step.time,
        length(union(starts, ends)) / US,
        length(computation) / US,
        length(communication) / US,
        length(intersection(computation, communication)) / US,
        replayer.left_out.get(step.number, "") if step.complete else "cut off",
        len(replayer.work.rows) > 0,
        length(union(starts[copies], ends[copies])) / US,
    )


def _breakdown(
    replayers: Sequence[Replayer], grouping: str, steps: int
) -> dict[str, tuple[float, float]]:
    times: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for replayer in replayers:
        tree = replayer.tree
        step_indices = replayer.typical_step_indices
        rows = np.flatnonzero(tree.trace.on_device & np.isin(tree.step, step_indices)).tolist()
        for row, key in zip(rows, _keys(tree, rows, grouping), strict=True):
            times[key] += float(tree.trace.columns["duration"][row]) / US
            counts[key] += 1
        for key, us in _work_of_no_step(replayer):
            times[key] += us
            counts[key] += 1
    order = sorted(times, key=lambda key: -times[key])
    return {key: (times[key] / steps, counts[key] / steps) for key in order}


def _work_of_no_step(replayer: Replayer) -> Iterator[tuple[str, float]]:
    """Yield a label and the microseconds within typical steps of device work that none launched."""
    tree, columns = replayer.tree, replayer.tree.trace.columns
    rows = np.flatnonzero(tree.trace.on_device & (tree.step < 0))
    starts, ends = columns["start"][rows], tree.trace.end[rows]
    within = np.zeros(len(rows), "i8")
    for step in replayer.typical_steps:
        overlap = np.minimum(ends, step.end) - np.maximum(starts, step.start)
        within += np.maximum(overlap, 0)
    calls = (columns["kind"] == EventKind.RUNTIME) & (columns["correlation"] > 0)
    first = min(columns["correlation"][calls].tolist(), default=1 << 62)
    outside, earlier, unknown = NO_STEP_LABELS
    for row, ns in zip(rows[within > 0].tolist(), within[within > 0].tolist(), strict=True):
        is_earlier = 0 < columns["correlation"][row] < first
        without_launch = earlier if is_earlier else unknown
        yield outside if tree.launch[row] >= 0 else without_launch, ns / US


def _host(replayers: Sequence[Replayer], steps: int) -> dict[str, tuple[float, float, float]]:
    """Return own host time, host time with inner operators, and calls per step, by operator."""
    sums: dict[str, Array] = defaultdict(lambda: np.zeros(3))
    for replayer in replayers:
        tree, columns = replayer.tree, replayer.tree.trace.columns
        step_indices = replayer.typical_step_indices
        operators = (columns["kind"] == EventKind.OP) & np.isin(tree.step, step_indices)
        rows = np.flatnonzero(operators)
        total_us = (tree.end - columns["start"]) / US
        enclosing = np.where(tree.parent[rows] >= 0, tree.op[tree.parent[rows]], -1)
        self_us = total_us.copy()
        np.subtract.at(self_us, enclosing[enclosing >= 0], total_us[rows[enclosing >= 0]])
        for row in rows.tolist():
            sums[tree.trace.text(row)] += (self_us[row], total_us[row], 1)
    order = sorted(sums, key=lambda name: -sums[name][0])
    return {name: tuple((sums[name] / steps).tolist()) for name in order}


def _keys(tree: Tree, rows: Sequence[int], grouping: str) -> list[str]:
    if grouping == "kernel":
        return [tree.trace.text(row) for row in rows]
    if grouping == "family":
        return families(tree, rows)
    if grouping == "annotation":
        around = _annotations(tree)[tree.launch[rows]]
        return [
            tree.trace.text(annotation) if annotation >= 0 else NO_ANNOTATION
            for annotation in around.tolist()
        ]
    if grouping == "phase":
        return [PHASES[int(tree.phase[row])] for row in rows]
    if grouping == "module":
        return [tree.modules[int(tree.module[row])] or "(no module)" for row in rows]
    tops = (int(tree.top[row]) for row in rows)
    return [tree.trace.text(top) if top >= 0 else "(no operator)" for top in tops]


def _annotations(tree: Tree) -> Integers:
    """Return the row of the innermost user range around each event, -1 if there is none.

    The last element is -1, for events without a launch (row -1).
    """
    columns = tree.trace.columns
    is_reserved = np.array([name.startswith(_RESERVED_PREFIXES) for name in tree.trace.names], bool)
    is_user_range = (columns["kind"] == EventKind.ANNOTATION) & ~is_reserved[columns["name"]]
    innermost: Integers = np.append(innermost_chosen(tree.parent, is_user_range), -1)
    return innermost


def _orphans(trees: Sequence[Tree]) -> dict[str, int]:
    counts: dict[str, int] = {"attributed": 0, "launched outside operators": 0, "without launch": 0}
    for tree in trees:
        device = tree.trace.on_device
        launched = device & (tree.launch >= 0)
        counts["attributed"] += int((launched & (tree.op >= 0)).sum())
        counts["launched outside operators"] += int((launched & (tree.op < 0)).sum())
        counts["without launch"] += int((device & (tree.launch < 0)).sum())
    return counts
