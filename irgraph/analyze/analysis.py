"""One trace for each rank, analysed: times, utilisation, breakdowns, communication, idle time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
PARTS = ("op", "kernel", "family", "module", "phase", "annotation")
"""What device work is parted by."""

LONGEST = 12
"""Families that a notebook shows."""

NO_ANNOTATION = "(no annotation)"
_MARKS = ("ProfilerStep#", "nn.Module: ", "module::", "irgraph.module#")
"""What names of annotations begin with that stand for steps and modules."""


class Analysis(Struct, frozen=True):
    """The analysis of some traces.

    Attributes:
        steps: figures of every step of every rank; those cut off are left out of all else.
        breakdowns: by each of ``PARTS``, microseconds of device work a step and events a step,
            longest first; means over the usual steps of all ranks. An annotation is the innermost
            range of the user's around the launch.
        host: by operator, its own time on the host a step, that with all operators below it, and
            calls a step; microseconds, means over the usual steps of all ranks.
        idle: by cause, microseconds a step in which no stream works.
        collectives: size, bandwidth, waiting and transfer of each; waiting is known where several
            ranks are given.
        collectives_by_kind: the same, means by process group, kind and size.
        stragglers: by rank, microseconds a step that it waits in collectives, and others for it.
        orphans: device events without an operator, by cause.
        repairs: what had to be repaired in the traces, as lines of text.
        covered: share of all device time that lies within the steps; ``None`` without device work.
        last: of each trace, its last usual step, simulated with its own recorded times; ``None``
            where it has no usual step.
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
        """Return the steps and the longest families of kernels as a notebook shows them."""
        families = list(self.breakdowns["family"].items())[:LONGEST]
        work = [(name, time_text(us), f"{count:g}") for name, (us, count) in families]
        steps = table_html("steps", [step.cells() for step in self.steps], HEADINGS)
        head = ("family", "time a step", "events a step")
        return steps + table_html("device work by kernel family", work, head)

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "steps": [step.row() for step in self.steps],
            "breakdown": {
                by: {
                    key: {"us": round(us, 3), "events": round(count, 2)}
                    for key, (us, count) in rows.items()
                }
                for by, rows in self.breakdowns.items()
            },
            "idle_us": {cause: round(us, 3) for cause, us in self.idle.items()},
            "collectives": self.collectives,
            "collectives_by_kind": list(self.collectives_by_kind),
            "stragglers": list(self.stragglers),
            "orphans": self.orphans,
            "device_time_within_steps": self.covered,
            "host": {
                name: {"self_us": round(own, 3), "us": round(whole, 3), "calls": round(calls, 2)}
                for name, (own, whole, calls) in self.host.items()
            },
        }

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return every table as records by its name: a list of plain rows, as DataFrames take it.

        Keys of a record are the same in all rows; times are microseconds a step (``_us``).
        """
        parts = {by: _shares(by, rows) for by, rows in self.breakdowns.items()}
        idle = [{"cause": cause, "us": round(us, 3)} for cause, us in self.idle.items()]
        found = self.as_json()
        host = [{"op": name, **row} for name, row in found["host"].items()]
        return {
            "steps": found["steps"],
            **parts,
            "idle": idle,
            "host": host,
            "collectives": self.collectives,
            "collectives_by_kind": found["collectives_by_kind"],
            "stragglers": found["stragglers"],
            "attribution": [{"device_events": k, "count": n} for k, n in self.orphans.items()],
        }


def _shares(by: str, rows: Mapping[str, tuple[float, float]]) -> list[dict[str, Any]]:
    total = sum(us for us, _ in rows.values()) or 1.0
    return [
        {by: key, "us": round(us, 3), "share": round(us / total, 6), "events": round(count, 2)}
        for key, (us, count) in rows.items()
    ]


def analyze(trees: Sequence[Tree]) -> Analysis:
    """Return the analysis of traces, one per rank."""
    replayers = [build_replayer(tree) for tree in trees]
    figures = [_figures(one, step) for one in replayers for step in one.tree.steps]
    inside, total = (sum(times) for times in zip(*map(device_time, trees), strict=True))
    usual = sum(len(one.typical_steps) for one in replayers) or 1
    met = collectives(replayers)
    idle, last = idle_causes(replayers)
    return Analysis(
        figures,
        {by: _breakdown(replayers, by, usual) for by in PARTS},
        idle,
        [one.row() for one in met],
        _orphans(trees),
        tuple(line for tree in trees for line in tree.trace.health.repairs()),
        inside / total if total else None,
        _host(replayers, usual),
        by_kind(met, max(len(one.typical_steps) for one in replayers)),
        stragglers(met),
        last,
    )


def families(tree: Tree, rows: Iterable[int]) -> list[str]:
    """Return the family of each device event."""
    kinds = tree.trace.columns["kind"]
    return [family_of(tree.trace.text(row), int(kinds[row])) for row in rows]


def _figures(one: Replayer, step: TraceStep) -> StepFigures:
    tree = one.tree
    rows = one.work.rows[one.work.within(step)]
    starts = np.clip(tree.trace.columns["start"][rows], step.start, step.end)
    ends = np.clip(tree.trace.end[rows], step.start, step.end)
    talks = np.array([f == COMMUNICATION for f in families(tree, rows.tolist())], bool)
    copies = tree.trace.columns["kind"][rows] != EventKind.KERNEL
    computes = ~talks & ~copies
    computing = union(starts[computes], ends[computes])
    talking = union(starts[talks], ends[talks])
    return StepFigures(
        tree.trace.rank,
        step.number,
        step.time,
        length(union(starts, ends)) / US,
        length(computing) / US,
        length(talking) / US,
        length(intersection(computing, talking)) / US,
        one.left_out.get(step.number, "") if step.complete else "cut off",
        len(one.work.rows) > 0,
        length(union(starts[copies], ends[copies])) / US,
    )


def _breakdown(
    replayers: Sequence[Replayer], by: str, steps: int
) -> dict[str, tuple[float, float]]:
    times: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for one in replayers:
        tree = one.tree
        chosen = one.typical_step_indices
        rows = np.flatnonzero(tree.trace.on_device & np.isin(tree.step, chosen)).tolist()
        for row, key in zip(rows, _keys(tree, rows, by), strict=True):
            times[key] += float(tree.trace.columns["duration"][row]) / US
            counts[key] += 1
    order = sorted(times, key=lambda key: -times[key])
    return {key: (times[key] / steps, counts[key] / steps) for key in order}


def _host(replayers: Sequence[Replayer], steps: int) -> dict[str, tuple[float, float, float]]:
    """Return by operator its own host time, that with operators below it, and calls, a step."""
    found: dict[str, Array] = defaultdict(lambda: np.zeros(3))
    for one in replayers:
        tree, columns = one.tree, one.tree.trace.columns
        chosen = one.typical_step_indices
        operators = (columns["kind"] == EventKind.OP) & np.isin(tree.step, chosen)
        rows = np.flatnonzero(operators)
        whole = (tree.end - columns["start"]) / US
        above = np.where(tree.parent[rows] >= 0, tree.op[tree.parent[rows]], -1)
        own = whole.copy()
        np.subtract.at(own, above[above >= 0], whole[rows[above >= 0]])
        for row in rows.tolist():
            found[tree.trace.text(row)] += (own[row], whole[row], 1)
    order = sorted(found, key=lambda name: -found[name][0])
    return {name: tuple((found[name] / steps).tolist()) for name in order}


def _keys(tree: Tree, rows: Sequence[int], by: str) -> list[str]:
    if by == "kernel":
        return [tree.trace.text(row) for row in rows]
    if by == "family":
        return families(tree, rows)
    if by == "annotation":
        around = _annotations(tree)[tree.launch[rows]]
        return [tree.trace.text(at) if at >= 0 else NO_ANNOTATION for at in around.tolist()]
    if by == "phase":
        return [PHASES[int(tree.phase[row])] for row in rows]
    if by == "module":
        return [tree.modules[int(tree.module[row])] or "(no module)" for row in rows]
    tops = (int(tree.top[row]) for row in rows)
    return [tree.trace.text(top) if top >= 0 else "(no operator)" for top in tops]


def _annotations(tree: Tree) -> Integers:
    """Return the innermost range of the user's around each event, -1 if none; last for ``[-1]``."""
    columns = tree.trace.columns
    marks = np.array([name.startswith(_MARKS) for name in tree.trace.names], bool)
    chosen = (columns["kind"] == EventKind.ANNOTATION) & ~marks[columns["name"]]
    found: Integers = np.append(innermost_chosen(tree.parent, chosen), -1)
    return found


def _orphans(trees: Sequence[Tree]) -> dict[str, int]:
    found: dict[str, int] = {"attributed": 0, "launched outside operators": 0, "without launch": 0}
    for tree in trees:
        device = tree.trace.on_device
        launched = device & (tree.launch >= 0)
        found["attributed"] += int((launched & (tree.op >= 0)).sum())
        found["launched outside operators"] += int((launched & (tree.op < 0)).sum())
        found["without launch"] += int((device & (tree.launch < 0)).sum())
    return found
