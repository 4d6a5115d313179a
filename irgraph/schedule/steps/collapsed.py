"""When many steps of one structure end, each under many draws of its times.

The steps differ in their device work alone, so what the host takes between two waits is drawn once
for all of them: tasks that wait for one other are folded into an offset from it. What is left to
compute for each step are its kernels, and the tasks at which the host waits for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from irgraph.schedule.tasks import Floats, Ints, Tasks

TOGETHER = 16
"""Steps that go through the tasks together: with 400 draws each, few enough for a cache."""

FEWEST = 3
"""Kernels after one node of the host whose times are counted from it: it costs a pass or two."""

FIXED = -1
"""Stands for the node of a task that no device work comes before: its end is drawn for all."""


class Work(Struct, frozen=True):
    """Kernels of many steps. Times in microseconds.

    Attributes:
        rows: the kernel that each task of device work runs, ``int64[work]``.
        lengths: expected, ``float64[kernels, steps]``.
        deviations: standard deviations, ``float64[kernels, steps]``.
        families: which of ``errors`` each takes, ``int64[kernels]``.
        errors: draws from a normal distribution, of each family, ``float64[families, draws]``.
    """

    rows: Ints
    lengths: Floats
    deviations: Floats
    families: Ints
    errors: Floats

    def steps(self, some: slice) -> Work:
        """Return the kernels of some of the steps."""
        return replace(self, lengths=self.lengths[:, some], deviations=self.deviations[:, some])


class _Node(NamedTuple):
    """A task that is device work, or that starts after the later of several others.

    Attributes:
        task: its position.
        work: its row among the work, -1 for none.
        first: the wait that its time is counted from, -1 where all it waits for is fixed.
        others: what else it waits for.
        base: the node from whose time its own is counted, that of the launch which a kernel waits
            for; -1 for none. Kernels launched one after the other then share their host's time.
        over: nodes whose times no later one needs.
    """

    task: int
    work: int
    first: int
    others: tuple[int, ...]
    base: int
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
        self.base = self._bases(found)
        over = self._over([(first, *others) for _, _, first, others in found])
        each = zip(found, self.base, over, strict=True)
        self.nodes = [_Node(*node, base, tuple(o)) for node, base, o in each]

    def _bases(self, found: Sequence[tuple[int, int, int, tuple[int, ...]]]) -> list[int]:
        """Return the node of the host after which the launch of each kernel comes, -1 for none."""
        bases: list[int] = []
        for _, row, _, others in found:
            nodes = {self.node[other] for other in others} - {FIXED}
            base = nodes.pop() if row >= 0 and len(nodes) == 1 else -1
            bases.append(base if base >= 0 and found[base][1] < 0 else -1)
        launched = Counter(bases)
        return [base if launched[base] >= FEWEST else -1 for base in bases]

    def _over(self, waits: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return, for each node, those that it is the last to need."""
        last: dict[int, int] = {}
        for at, each in enumerate(waits):
            nodes = [self.node[w] for w in each if w >= 0 and self.node[w] != FIXED]
            for node in (*nodes, *(self.base[n] for n in nodes), self.base[at]):
                last[node] = at
        kept = {self.node[task] for task in self.last} - {FIXED}
        kept |= {-1, *(self.base[node] for node in kept)}
        over: list[list[int]] = [[] for _ in waits]
        for node, at in last.items():
            if node not in kept:
                over[at].append(node)
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
            found[some] = _Run(self, offsets, work.steps(some)).ends()
        return found

    def _offsets(self, lengths: Sequence[Floats | float]) -> list[Floats | float]:
        """Return how long after its node each task ends; of fixed ones, when."""
        offsets: list[Floats | float] = []
        at = 0
        for task, waits in enumerate(self.tasks.waited):
            if at < len(self.nodes) and self.nodes[at].task == task:
                _, row, first, others, _, _ = self.nodes[at]
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

    A node's time is kept less the offset of its task, so that its first wait needs no sum, and
    less the time of its base.
    """

    def __init__(self, of: Collapsed, offsets: Sequence[Floats | float], work: Work) -> None:
        self.of, self.offsets, self.work = of, offsets, work
        self.shape = (work.lengths.shape[1], work.errors.shape[1])
        self.free: list[Floats] = []
        self.more = np.empty(self.shape)
        self.times: list[Floats] = []
        self.kernel, self.family = work.rows.tolist(), work.families.tolist()
        self.lengths: dict[int, Floats] = {}

    def ends(self) -> Floats:
        """Return when the last task ends, ``float64[steps, draws]``."""
        for node in self.of.nodes:
            time = self.free.pop() if self.free else np.empty(self.shape)
            if node.first < 0:
                time[:] = 0.0
            elif node.base < 0:
                self._start(node, time)
            else:
                self._start_after(node, time)
            if node.work >= 0:
                time += self._length(self.kernel[node.work])
            self.times.append(time)
            self.free += [self.times[other] for other in node.over]
        found = np.zeros(self.shape)
        for task in self.of.last:
            np.maximum(found, self._end(task, 0.0), out=found)
        return found

    def _start(self, node: _Node, time: Floats) -> None:
        """Write when a node starts."""
        before = self.offsets[node.first]
        first = self.of.node[node.first]
        begun = self.times[first]
        if self.of.base[first] >= 0 or not node.others:
            time[:] = self._since_start(first)
            begun = time
        for other in node.others:
            begun = np.maximum(begun, self._end(other, before), out=time)

    def _start_after(self, node: _Node, time: Floats) -> None:
        """Write how long after its base a node starts."""
        first, base, before = self.of.node[node.first], node.base, self.offsets[node.first]
        begun = self.times[first]
        if self.of.base[first] != base:
            begun = np.subtract(self._since_start(first), self.times[base], out=time)
        for other in node.others:
            offset = self.offsets[other] - before
            if self.of.node[other] == FIXED:
                offset = np.subtract(offset, self.times[base], out=self.more)
            begun = np.maximum(begun, offset, out=time)

    def _since_start(self, node: int) -> Floats:
        """Return a node's time that is counted from no base."""
        base, time = self.of.base[node], self.times[node]
        return time if base < 0 else np.add(time, self.times[base], out=self.more)

    def _end(self, task: int, before: Floats | float) -> Floats | float:
        """Return when a task ends, counted from an offset."""
        offset, node = self.offsets[task] - before, self.of.node[task]
        return offset if node == FIXED else np.add(self._since_start(node), offset, out=self.more)

    def _length(self, kernel: int) -> Floats:
        """Return how long a kernel takes."""
        known = self.lengths.get(kernel)
        if known is None:
            error, work = self.work.errors[self.family[kernel]], self.work
            known = work.deviations[kernel][:, None] * error
            known += work.lengths[kernel][:, None]
            self.lengths[kernel] = np.maximum(known, 0.0, out=known)
        return known
