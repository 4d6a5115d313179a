"""Simulated timelines and their critical paths as slices of a report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.pages.slices import NS, Slices, work_family
from irgraph.schedule.critical_path import CriticalPath
from irgraph.schedule.intervals import CAUSES, Intervals
from irgraph.schedule.tasks import Floats, Ints
from irgraph.schedule.timeline import Resource, Timeline

PATH = "critical path"

RECORDED = ("kernel", "memcpy", "memset")
"""Families of kernels of replayed steps."""

_RANK = re.compile(r"(rank \d+) (.*)", re.DOTALL)

OP = "operation"
"""Kind of the slices of operations on a host thread; T1-T5 lie below them."""

WAIT = "waits"
"""Kind of the slices in which a host thread waits for the device."""


def add_timeline(slices: Slices, timeline: Timeline, path: CriticalPath, group: str = "") -> None:
    """Add a timeline: operations and their parts on host threads, kernels on streams."""
    _Shown(slices, timeline.columns, group).add(timeline, path)


def path_slices(path: CriticalPath, group: str = "") -> dict[str, Any]:
    """Return the critical path as slices of one track."""
    slices = Slices()
    add_path(slices, path, group)
    return slices.record()


def add_path(slices: Slices, path: CriticalPath, group: str = "") -> None:
    """Add a critical path as one track."""
    shown = _Shown(slices, path.columns, group)
    chain = path.chain
    track = np.full(len(chain), slices.track(group, PATH, ""))
    kind, columns = shown.kinds()[chain], path.columns
    ops = np.array([slices.texts(op.name) for op in columns.ops] + [-1], np.int64)
    name = ops[columns.tasks.op[chain]]
    name = np.where(name >= 0, name, kind)
    facts = shown.facts(chain)
    slices.add(columns.start[chain], columns.end[chain], track, name, kind, facts, True)


def longest(path: Mapping[str, Any], most: int = 5) -> list[tuple[str, float, float]]:
    """Return what a critical path (``path_slices``) shows longest: name, microseconds, share."""
    columns, texts = path["columns"], path["texts"]
    times = np.bincount(columns["name"], columns["length"], minlength=len(texts)) / NS
    total = float(times.sum()) or 1.0
    order = np.argsort(-times, kind="stable")[:most]
    return [(texts[at], float(times[at]), float(times[at]) / total) for at in order if times[at]]


class _Shown:
    """The intervals of a timeline, and the numbers of their texts."""

    def __init__(self, slices: Slices, columns: Intervals, group: str) -> None:
        self.slices, self.columns, self.group = slices, columns, group
        self._of_ops: dict[int, tuple[int, ...]] = {-1: ()}
        self._of_kernels: dict[int, tuple[int, ...]] = {-1: ()}

    def add(self, timeline: Timeline, path: CriticalPath) -> None:
        """Add what runs on streams, what host threads do, and the operations around that."""
        columns, tasks = self.columns, self.columns.tasks
        for resource in sorted(timeline.resources, key=_order):
            self._track(resource)
        tracks = [self._track(resource) for resource in timeline.resources]
        track = np.array(tracks or [0], np.int64)[tasks.resource]
        host = np.array([r.kind == "host" for r in timeline.resources] or [False])[tasks.resource]
        critical = np.zeros(len(columns), np.int64)
        critical[path.chain] = 1
        kinds = self.kinds()
        kernels = self._numbers([kernel.name for kernel in columns.kernels])[tasks.kernel]
        work = tasks.has_cause("kernel") & (tasks.kernel >= 0)
        name = np.where(work, kernels, kinds)
        shown = np.flatnonzero((work | host) & (columns.end > columns.start))
        self.slices.add(
            columns.start[shown],
            columns.end[shown],
            track[shown],
            name[shown],
            kinds[shown],
            self.facts(shown),
            critical[shown],
        )
        ready = _ready(tasks.resource, columns.end)
        self._waits(
            np.flatnonzero(host & tasks.has_cause("sync") & (columns.start > ready)), ready, track
        )
        self._ops(np.flatnonzero(host & ~tasks.has_cause("T1") & (tasks.op >= 0)), ready, track)

    def _track(self, resource: Resource) -> int:
        rank, name = _rank(resource)
        return self.slices.track(self.group or rank, resource.kind, name)

    def kinds(self) -> Ints:
        """Return the number of each interval's kind: its cause, or a kernel's family."""
        tasks = self.columns.tasks
        causes = self._numbers(list(tasks.causes))[tasks.cause]
        families = self._numbers([_family(kernel) for kernel in self.columns.kernels])[tasks.kernel]
        work = tasks.has_cause("kernel") & (tasks.kernel >= 0)
        found: Ints = np.where(work, families, causes)
        return found

    def facts(self, positions: Ints) -> Ints:
        """Return the number of the facts about each of some intervals."""
        tasks = self.columns.tasks
        keys = np.stack([tasks.cause, tasks.op, tasks.kernel])[:, positions]
        different, inverse = np.unique(keys, axis=1, return_inverse=True)
        causes = [self.slices.pairs([("cause", CAUSES[cause])]) for cause in tasks.causes]
        numbers = [
            self.slices.joined(causes[cause], self._of_op(op), self._of_kernel(kernel))
            for cause, op, kernel in different.T.tolist()
        ]
        found: Ints = np.array(numbers, np.int64)[inverse.reshape(-1)]
        return found

    def _of_op(self, at: int) -> tuple[int, ...]:
        """Return the numbers of the facts about an op, none for -1."""
        if at not in self._of_ops:
            self._of_ops[at] = self.slices.pairs(_op_facts(self.columns.ops[at]))
        return self._of_ops[at]

    def _of_kernel(self, at: int) -> tuple[int, ...]:
        """Return the numbers of the facts about a kernel, none for -1."""
        if at not in self._of_kernels:
            self._of_kernels[at] = self.slices.pairs(_kernel_facts(self.columns.kernels[at]))
        return self._of_kernels[at]

    def _waits(self, chosen: Ints, ready: Floats, track: Ints) -> None:
        """Add the time from the end of a thread's work to that of what it waits for."""
        number = np.full(len(chosen), self.slices.texts(WAIT))
        start = self.columns.start
        self.slices.add(
            ready[chosen], start[chosen], track[chosen], number, number, self.facts(chosen)
        )

    def _ops(self, chosen: Ints, ready: Floats, track: Ints) -> None:
        """Add one slice an operation on its host thread, without the T1 before it."""
        tasks, columns = self.columns.tasks, self.columns
        keys = tasks.resource[chosen] * (len(columns.ops) + 1) + tasks.op[chosen]
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        start, end = np.full(len(first), np.inf), np.zeros(len(first))
        np.minimum.at(start, inverse, np.minimum(ready, columns.start)[chosen])
        np.maximum.at(end, inverse, columns.end[chosen])
        ops = tasks.op[chosen[first]].tolist()
        name = np.array([self.slices.texts(columns.ops[op].name) for op in ops], np.int64)
        facts = np.array([self.slices.joined(self._of_op(op)) for op in ops], np.int64)
        kind = np.full(len(first), self.slices.texts(OP))
        self.slices.add(start, end, track[chosen[first]], name, kind, facts)

    def _numbers(self, texts: list[str]) -> Ints:
        """Return the numbers of texts, and -1 at the end: what an index of -1 finds."""
        return np.array([*map(self.slices.texts, texts), -1], np.int64)


def _rank(resource: Resource) -> tuple[str, str]:
    """Return the rank of a thread or stream of several, ``""`` for none, and its name there."""
    found = _RANK.match(resource.name)
    return (found[1], found[2]) if found else ("", resource.name)


def _order(resource: Resource) -> tuple[int, bool]:
    """Return where a thread or stream is shown: rank by rank, host threads first."""
    rank, _ = _rank(resource)
    return int(rank.removeprefix("rank ") or 0), resource.kind != "host"


def _family(kernel: Kernel) -> str:
    """Return a kernel's family; of one in a replayed step by its name."""
    return work_family(kernel.name) if kernel.family in RECORDED else kernel.family


def _ready(resource: Ints, end: Floats) -> Floats:
    """Return when each interval's thread or stream became free, microseconds."""
    order = np.argsort(resource, kind="stable")
    before = np.concatenate([[0.0], end[order][:-1]])
    before[np.diff(resource[order], prepend=-1) != 0] = 0.0
    ready = np.empty_like(before)
    ready[order] = before
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
