"""When many steps of one structure end, each under many draws of its times.

The steps differ in their device work alone, so what the host takes between two waits is drawn once
for all of them: tasks that wait for one other are folded into an offset from it. What is left to
compute for each step are its kernels, and the tasks at which the host waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from irgraph.schedule.tasks import Floats, Ints, Tasks

TOGETHER = 16
"""Steps that go through the tasks together: with 400 draws each, few enough for a cache."""

FIXED = -1
"""Stands for the node of a task that no device work comes before: its end is drawn for all."""


class Work(Struct, frozen=True):
    """Device work of many steps. Times in microseconds.

    Attributes:
        lengths: expected, ``float64[work, steps]``.
        deviations: standard deviations, ``float64[work, steps]``.
        families: which of ``errors`` each takes, ``int64[work]``.
        errors: draws from a normal distribution, of each family, ``float64[families, draws]``.
    """

    lengths: Floats
    deviations: Floats
    families: Ints
    errors: Floats


class _Node(NamedTuple):
    """A task that is device work, or that starts after the later of several others.

    Attributes:
        task: its position.
        work: its row among the work, -1 for none.
        first: the wait that its time is counted from, -1 where all it waits for is fixed.
        others: what else it waits for.
        over: nodes whose times no later one needs.
    """

    task: int
    work: int
    first: int
    others: tuple[int, ...]
    over: tuple[int, ...]


class Collapsed:
    """The nodes of a task graph; every other task ends some time after one of them.

    Attributes:
        tasks: the task graph.
        node: the node that each task comes after, ``FIXED`` for none.
        nodes: in topological order.
        last: tasks that no other waits for.
    """

    def __init__(self, tasks: Tasks, work: Ints) -> None:
        """Collapse tasks, of which those of ``work`` differ between steps, ``int64[work]``."""
        self.tasks = tasks
        self.node: list[int] = []
        rows = dict(zip(work.tolist(), range(len(work)), strict=True))
        found: list[tuple[int, int, int, tuple[int, ...]]] = []
        for task, waits in enumerate(tasks.waited):
            row, varying = rows.get(task, -1), [w for w in waits if self.node[w] != FIXED]
            first = varying[0] if varying else -1
            if row >= 0 or (varying and len(waits) > 1):
                found.append((task, row, first, tuple(w for w in waits if w != first)))
                self.node.append(len(found) - 1)
            else:
                self.node.append(FIXED if first < 0 else self.node[first])
        awaited = {other for waits in tasks.waited for other in waits}
        self.last = [task for task in range(len(tasks)) if task not in awaited]
        over = self._over([(first, *others) for _, _, first, others in found])
        self.nodes = [_Node(*node, tuple(o)) for node, o in zip(found, over, strict=True)]

    def _over(self, waits: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return, for each node, those that it is the last to wait for."""
        last = {self.node[w]: node for node, each in enumerate(waits) for w in each if w >= 0}
        kept = {FIXED, *(self.node[task] for task in self.last)}
        over: list[list[int]] = [[] for _ in waits]
        for other, node in last.items():
            if other not in kept:
                over[node].append(other)
        return over

    def ends(self, lengths: Sequence[Floats | float], work: Work) -> Floats:
        """Return when the last task of each step ends under each draw, ``float64[steps, draws]``.

        ``lengths`` holds those of each task, ``float64[draws]`` or one for all; of device work
        they are not read.
        """
        steps, draws = work.lengths.shape[1], work.errors.shape[1]
        offsets = self._offsets(lengths)
        found = np.empty((steps, draws))
        for at in range(0, steps, TOGETHER):
            some = slice(at, at + TOGETHER)
            own = Work(work.lengths[:, some], work.deviations[:, some], work.families, work.errors)
            found[some] = _Run(self, offsets, own).ends()
        return found

    def _offsets(self, lengths: Sequence[Floats | float]) -> list[Floats | float]:
        """Return how long after its node each task ends; of fixed ones, when."""
        offsets: list[Floats | float] = []
        at = 0
        for task, waits in enumerate(self.tasks.waited):
            if at < len(self.nodes) and self.nodes[at].task == task:
                _, row, first, others, _ = self.nodes[at]
                at += 1
                before = offsets[first] if first >= 0 else _latest([offsets[w] for w in others])
                offsets.append(before if row >= 0 else before + lengths[task])
            else:
                offsets.append(_latest([offsets[w] for w in waits]) + lengths[task])
        return offsets


def _latest(ends: Sequence[Floats | float]) -> Floats | float:
    latest: Floats | float = ends[0] if ends else 0.0
    for end in ends[1:]:
        latest = np.maximum(latest, end)
    return latest


class _Run:
    """One pass over the nodes, for some steps.

    A node's time is kept less the offset of its task: so its first wait needs no sum.
    """

    def __init__(self, of: Collapsed, offsets: Sequence[Floats | float], work: Work) -> None:
        self.of, self.offsets, self.work = of, offsets, work
        self.shape = (work.lengths.shape[1], work.errors.shape[1])
        self.free: list[Floats] = []
        self.more = np.empty(self.shape)
        worst = work.errors.min(1, initial=0.0)[work.families, None]
        self.below = (work.lengths + work.deviations * worst < 0.0).any(1).tolist()
        self.family = work.families.tolist()

    def ends(self) -> Floats:
        """Return when the last task ends, ``float64[steps, draws]``."""
        times: list[Floats] = []
        for node in self.of.nodes:
            time = self.free.pop() if self.free else np.empty(self.shape)
            self._start(node, times, time)
            if node.work >= 0:
                time += self._length(node.work)
            times.append(time)
            self.free += [times[other] for other in node.over]
        found = np.zeros(self.shape)
        for task in self.of.last:
            np.maximum(found, self._end(task, times, 0.0), out=found)
        return found

    def _start(self, node: _Node, times: Sequence[Floats], time: Floats) -> None:
        """Write when a node starts."""
        if node.first < 0:
            time[:] = 0.0
            return
        begun, before = times[self.of.node[node.first]], self.offsets[node.first]
        for other in node.others:
            np.maximum(begun, self._end(other, times, before), out=time)
            begun = time
        if begun is not time:
            time[:] = begun

    def _end(self, task: int, times: Sequence[Floats], before: Floats | float) -> Floats | float:
        """Return when a task ends, counted from an offset."""
        offset, node = self.offsets[task] - before, self.of.node[task]
        return offset if node == FIXED else np.add(times[node], offset, out=self.more)

    def _length(self, row: int) -> Floats:
        """Return how long work takes."""
        error, work = self.work.errors[self.family[row]], self.work
        np.multiply(work.deviations[row][:, None], error, out=self.more)
        self.more += work.lengths[row][:, None]
        return np.maximum(self.more, 0.0, out=self.more) if self.below[row] else self.more
