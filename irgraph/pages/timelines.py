"""Simulated timelines and their critical paths as slices of a report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.pages.slices import NS_PER_US, Slices, work_family
from irgraph.schedule.critical_path import CriticalPath
from irgraph.schedule.intervals import CAUSES, Intervals
from irgraph.schedule.tasks import Floats, Ints
from irgraph.schedule.timeline import Resource, Timeline

PATH = "critical path"

RECORDED = ("kernel", "memcpy", "memset")
"""Families of kernels of replayed steps."""

_RANK = re.compile(r"(rank \d+) (.*)", re.DOTALL)

OPERATION = "operation"
"""Kind of the slices of operations on a host thread; T1-T5 are shown below them."""

WAIT = "waits"
"""Kind of the slices in which a host thread waits for the device."""


def add_timeline(slices: Slices, timeline: Timeline, path: CriticalPath, group: str = "") -> None:
    """Add a timeline: operations and their parts on host threads, kernels on streams."""
    _TimelineSlices(slices, timeline.columns, group).add(timeline, path)


def path_slices(path: CriticalPath, group: str = "") -> dict[str, Any]:
    """Return the critical path as slices of one track."""
    slices = Slices()
    add_path(slices, path, group)
    return slices.record()


def add_path(slices: Slices, path: CriticalPath, group: str = "") -> None:
    """Add a critical path as one track."""
    timeline_slices = _TimelineSlices(slices, path.columns, group)
    chain = path.chain
    track = np.full(len(chain), slices.track(group, PATH, ""))
    kind, columns = timeline_slices.kinds()[chain], path.columns
    ops = np.array([slices.texts(op.name) for op in columns.ops] + [-1], np.int64)
    name = ops[columns.tasks.op[chain]]
    name = np.where(name >= 0, name, kind)
    facts = timeline_slices.facts(chain)
    slices.add(columns.start[chain], columns.end[chain], track, name, kind, facts, True)


def longest(path: Mapping[str, Any], count: int = 5) -> list[tuple[str, float, float]]:
    """Return the longest names on a critical path (``path_slices``), microseconds and shares."""
    columns, texts = path["columns"], path["texts"]
    times = np.bincount(columns["name"], columns["length"], minlength=len(texts)) / NS_PER_US
    total = float(times.sum()) or 1.0
    order = np.argsort(-times, kind="stable")[:count]
    return [
        (texts[index], float(times[index]), float(times[index]) / total)
        for index in order
        if times[index]
    ]


class _TimelineSlices:
    """The intervals of a timeline, and the numbers of their texts."""

    def __init__(self, slices: Slices, columns: Intervals, group: str) -> None:
        self.slices, self.columns, self.group = slices, columns, group
        self._op_facts: dict[int, tuple[int, ...]] = {-1: ()}
        self._kernel_facts: dict[int, tuple[int, ...]] = {-1: ()}

    def add(self, timeline: Timeline, path: CriticalPath) -> None:
        """Add the work of streams, the intervals of host threads, and their operations."""
        columns, tasks = self.columns, self.columns.tasks
        for resource in sorted(timeline.resources, key=_display_order):
            self._track(resource)
        tracks = [self._track(resource) for resource in timeline.resources]
        track = np.array(tracks or [0], np.int64)[tasks.resource]
        host = np.array([r.kind == "host" for r in timeline.resources] or [False])[tasks.resource]
        critical = np.zeros(len(columns), np.int64)
        critical[path.chain] = 1
        kinds = self.kinds()
        kernels = self._text_numbers([kernel.name for kernel in columns.kernels])[tasks.kernel]
        work = tasks.has_cause("kernel") & (tasks.kernel >= 0)
        name = np.where(work, kernels, kinds)
        visible = np.flatnonzero((work | host) & (columns.end > columns.start))
        self.slices.add(
            columns.start[visible],
            columns.end[visible],
            track[visible],
            name[visible],
            kinds[visible],
            self.facts(visible),
            critical[visible],
        )
        ready = _ready(tasks.resource, columns.end)
        self._add_waits(
            np.flatnonzero(host & tasks.has_cause("sync") & (columns.start > ready)), ready, track
        )
        self._add_ops(np.flatnonzero(host & ~tasks.has_cause("T1") & (tasks.op >= 0)), ready, track)

    def _track(self, resource: Resource) -> int:
        rank, name = _rank(resource)
        return self.slices.track(self.group or rank, resource.kind, name)

    def kinds(self) -> Ints:
        """Return the number of each interval's kind: its cause, or a kernel's family."""
        tasks = self.columns.tasks
        causes = self._text_numbers(list(tasks.causes))[tasks.cause]
        families = self._text_numbers([_family(kernel) for kernel in self.columns.kernels])[
            tasks.kernel
        ]
        work = tasks.has_cause("kernel") & (tasks.kernel >= 0)
        numbers: Ints = np.where(work, families, causes)
        return numbers

    def facts(self, positions: Ints) -> Ints:
        """Return the number of the facts about each of some intervals."""
        tasks = self.columns.tasks
        keys = np.stack([tasks.cause, tasks.op, tasks.kernel])[:, positions]
        different, inverse = np.unique(keys, axis=1, return_inverse=True)
        causes = [self.slices.pairs([("cause", CAUSES[cause])]) for cause in tasks.causes]
        numbers = [
            self.slices.join(causes[cause], self._facts_of_op(op), self._facts_of_kernel(kernel))
            for cause, op, kernel in different.T.tolist()
        ]
        fact_numbers: Ints = np.array(numbers, np.int64)[inverse.reshape(-1)]
        return fact_numbers

    def _facts_of_op(self, op: int) -> tuple[int, ...]:
        """Return the numbers of the facts about an op, none for -1."""
        if op not in self._op_facts:
            self._op_facts[op] = self.slices.pairs(_op_facts(self.columns.ops[op]))
        return self._op_facts[op]

    def _facts_of_kernel(self, kernel: int) -> tuple[int, ...]:
        """Return the numbers of the facts about a kernel, none for -1."""
        if kernel not in self._kernel_facts:
            self._kernel_facts[kernel] = self.slices.pairs(
                _kernel_facts(self.columns.kernels[kernel])
            )
        return self._kernel_facts[kernel]

    def _add_waits(self, positions: Ints, ready: Floats, track: Ints) -> None:
        """Add the time from the end of a thread's work to the end of the work it waits for."""
        number = np.full(len(positions), self.slices.texts(WAIT))
        start = self.columns.start
        self.slices.add(
            ready[positions],
            start[positions],
            track[positions],
            number,
            number,
            self.facts(positions),
        )

    def _add_ops(self, positions: Ints, ready: Floats, track: Ints) -> None:
        """Add a slice for each operation on its host thread, without the T1 before it."""
        tasks, columns = self.columns.tasks, self.columns
        keys = tasks.resource[positions] * (len(columns.ops) + 1) + tasks.op[positions]
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        start, end = np.full(len(first), np.inf), np.zeros(len(first))
        np.minimum.at(start, inverse, np.minimum(ready, columns.start)[positions])
        np.maximum.at(end, inverse, columns.end[positions])
        ops = tasks.op[positions[first]].tolist()
        name = np.array([self.slices.texts(columns.ops[op].name) for op in ops], np.int64)
        facts = np.array([self.slices.join(self._facts_of_op(op)) for op in ops], np.int64)
        kind = np.full(len(first), self.slices.texts(OPERATION))
        self.slices.add(start, end, track[positions[first]], name, kind, facts)

    def _text_numbers(self, texts: list[str]) -> Ints:
        """Return the numbers of texts, followed by -1 for an index of -1."""
        return np.array([*map(self.slices.texts, texts), -1], np.int64)


def _rank(resource: Resource) -> tuple[str, str]:
    """Return the rank of a thread or stream, ``""`` for none, and its name on that rank."""
    match = _RANK.match(resource.name)
    return (match[1], match[2]) if match else ("", resource.name)


def _display_order(resource: Resource) -> tuple[int, bool]:
    """Return the display order of a thread or stream: rank by rank, host threads first."""
    rank, _ = _rank(resource)
    return int(rank.removeprefix("rank ") or 0), resource.kind != "host"


def _family(kernel: Kernel) -> str:
    """Return a kernel's family; in a replayed step it is inferred from its name."""
    return work_family(kernel.name) if kernel.family in RECORDED else kernel.family


def _ready(resource: Ints, end: Floats) -> Floats:
    """Return the time at which each interval's thread or stream became free, microseconds."""
    order = np.argsort(resource, kind="stable")
    previous_end = np.concatenate([[0.0], end[order][:-1]])
    previous_end[np.diff(resource[order], prepend=-1) != 0] = 0.0
    ready = np.empty_like(previous_end)
    ready[order] = previous_end
    return ready


def _op_facts(op: Op) -> list[tuple[str, Any]]:
    shapes = ", ".join(f"{t.dtype}{[int(n) for n in t.shape]}" for t in op.inputs)
    return [
        ("op", op.name),
        ("module", op.module),
        ("phase", op.phase),
        ("operands", shapes),
        ("from", op.origin),
    ]


def _kernel_facts(kernel: Kernel) -> list[tuple[str, Any]]:
    spread = f"{kernel.time:.6g} ± {kernel.spread:.3g} us"
    outside = "outside what its model has seen" if kernel.outside else ""
    return [
        ("kernel", kernel.name),
        ("family", kernel.family),
        ("by", kernel.by),
        ("time alone", spread),
        ("range", outside),
        ("formula", kernel.formula),
    ]
