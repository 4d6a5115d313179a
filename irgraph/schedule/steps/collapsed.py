"""When many steps of one structure end, each under many draws of its times.

The steps differ in their device work alone, so what the host takes between two waits is drawn once
for all of them: tasks that wait for one other are folded into an offset from it. What is left to
compute for each step are its kernels, and the tasks at which the host waits for them.

Times of such a node are counted from its reference: for a kernel its launch, for the host what it
did before. A kernel's row of draws, which is the same for all steps, then goes into the product
that gives its lengths, and what has begun before the reference is compared with zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from irgraph.schedule.steps.needed import needed_waits
from irgraph.schedule.steps.products import Lengths, Products, Work
from irgraph.schedule.tasks import Floats, Ints, Tasks

TOGETHER = 32
"""Steps that go through the tasks together: with 400 draws each, few enough for a cache."""

FIXED = -1
"""Stands for the node of a task that no device work comes before: its end is drawn for all."""


class _Node(NamedTuple):
    """A task that is device work, or that starts after the later of several others.

    Attributes:
        task: its position.
        work: its row among the work, -1 for none.
        reference: the wait that its time is counted from, -1 for the step's beginning.
        base: the node of that wait: one of the host, or ``FIXED``.
        others: what else it waits for.
    """

    task: int
    work: int
    reference: int
    base: int
    others: tuple[int, ...]


class Collapsed:
    """The nodes of a task graph; every other task ends some time after one of them.

    Attributes:
        waited: what each task has to wait for.
        node: the node that each task comes after, ``FIXED`` for none.
        nodes: in topological order.
        over: for each, the nodes that it is the last to need.
        follower: of work, the first node that waits for it and has the same base.
        last: tasks that no other waits for.
    """

    def __init__(self, tasks: Tasks, work: Ints) -> None:
        """Collapse tasks, of which those of ``work`` differ between steps, ``int64[work]``."""
        self.waited = needed_waits(tasks)
        self.node: list[int] = []
        self.nodes: list[_Node] = []
        rows = dict(zip(work.tolist(), range(len(work)), strict=True))
        for task, waits in enumerate(self.waited):
            row, varying = rows.get(task, -1), [w for w in waits if self.node[w] != FIXED]
            if row >= 0 or (varying and len(waits) > 1):
                self.nodes.append(self._of(task, row, waits))
                self.node.append(len(self.nodes) - 1)
            else:
                self.node.append(self.node[varying[0]] if varying else FIXED)
        awaited = {other for waits in self.waited for other in waits}
        self.last = [task for task in range(len(tasks)) if task not in awaited]
        self.over = self._over()
        self.follower: dict[int, tuple[int, int]] = {}
        for at, node in enumerate(self.nodes):
            for other in node.others:
                before = self.node[other]
                if self.is_work(before) and self.nodes[before].base == node.base:
                    self.follower.setdefault(before, (at, other))

    def is_work(self, node: int) -> bool:
        """Return whether a node is device work."""
        return node != FIXED and self.nodes[node].work >= 0

    def _of(self, task: int, row: int, waits: Sequence[int]) -> _Node:
        host = [wait for wait in waits if not self.is_work(self.node[wait])]
        reference = max(host, key=lambda wait: self.node[wait], default=-1)
        base = self.node[reference] if reference >= 0 else FIXED
        return _Node(task, row, reference, base, tuple(w for w in waits if w != reference))

    def _over(self) -> list[list[int]]:
        """Return, for each node, those that it is the last to need."""
        last: dict[int, int] = {}
        for at, node in enumerate(self.nodes):
            for needed in (self.node[wait] for wait in node.others):
                last[needed] = last[self.base_of(needed)] = at
            last[node.base] = at
        kept = {self.node[task] for task in self.last}
        kept |= {FIXED, *map(self.base_of, kept)}
        over: list[list[int]] = [[] for _ in self.nodes]
        for at, user in last.items():
            if at not in kept:
                over[user].append(at)
        return over

    def base_of(self, node: int) -> int:
        """Return the node of the host that a node's time is kept from: of the host's, itself."""
        return self.nodes[node].base if self.is_work(node) else node

    def ends(self, lengths: Sequence[Floats | float], work: Work) -> Floats:
        """Return when the last task of each step ends under each draw, ``float64[steps, draws]``.

        ``lengths`` holds those of each task, ``float64[draws]`` or one for all; of device work
        they are not read.
        """
        steps, draws = work.lengths.shape[1], work.errors.shape[1]
        drawn, products = _Drawn(self, lengths), Products(work)
        kernels = work.rows.tolist()
        found = np.empty((steps, draws))
        for at in range(0, steps, TOGETHER):
            some = slice(at, at + TOGETHER)
            found[some] = _Run(drawn, kernels, products.of(some)).ends()
        return found


class _Term(NamedTuple):
    """What a node may have to wait for after its reference.

    Attributes:
        node: the node that it comes after, ``FIXED`` for none.
        row: what is added to that node's time as it is kept, ``None`` for nothing.
    """

    node: int
    row: Floats | float | None


class _Drawn:
    """What the draws of the host's times say of each node, for all steps alike.

    Attributes:
        offsets: how long after its node's time each task ends; of fixed ones, when.
        references: of each node, the offset of its reference.
        rows: what the time of work is kept less of, beside that of its base: such that its
            follower has to wait for it where it is above zero.
        shifts: from there to the reference.
        terms: of each node, what it may have to wait for after its reference.
    """

    def __init__(self, of: Collapsed, lengths: Sequence[Floats | float]) -> None:
        self.of = of
        self.offsets: list[Floats | float] = []
        self.references: list[Floats | float] = []
        for task, waits in enumerate(of.waited):
            self.offsets.append(self._offset(task, waits, lengths[task]))
        self.rows = [self._row(at) for at in range(len(of.nodes))]
        self.shifts = [a - b for a, b in zip(self.references, self.rows, strict=True)]
        self.terms = [list(self._terms(at)) for at in range(len(of.nodes))]

    def _offset(self, task: int, waits: Sequence[int], length: Floats | float) -> Floats | float:
        at, nodes = len(self.references), self.of.nodes
        if at == len(nodes) or nodes[at].task != task:
            return _latest([self.offsets[wait] for wait in waits]) + length
        reference = nodes[at].reference
        self.references.append(self.offsets[reference] if reference >= 0 else 0.0)
        return 0.0 if nodes[at].work >= 0 else self.references[at] + length

    def _row(self, at: int) -> Floats | float:
        if at not in self.of.follower:
            return self.references[at]
        follower, wait = self.of.follower[at]
        return self.references[follower] - self.offsets[wait]

    def _terms(self, at: int) -> Iterator[_Term]:
        """Yield what a node may have to wait for; first what its row was chosen for."""
        node, rest = self.of.nodes[at], []
        for wait in node.others:
            before = self.of.node[wait]
            if self.of.follower.get(before) == (at, wait):
                yield _Term(before, None)
                continue
            row = self.offsets[wait] - self.references[at]
            if not self._earlier(before, node.base, row):
                kept = self.rows[before] if self.of.is_work(before) else 0.0
                rest.append(_Term(before, row + kept))
        yield from rest

    def _earlier(self, before: int, base: int, row: Floats | float) -> bool:
        """Return whether a node's reference cannot come before what is ``row`` after another node.

        Nor can it where the base has waited for that node.
        """
        if before == base:
            return bool(np.all(row <= 0.0))
        if base == FIXED:
            return False
        waits = (wait for wait in self.of.nodes[base].others if self.of.node[wait] == before)
        begun = self.references[base]
        return any(np.all(row + begun - self.offsets[wait] <= 0.0) for wait in waits)


def _latest(ends: Sequence[Floats | float]) -> Floats | float:
    latest: Floats | float = ends[0] if ends else 0.0
    for end in ends[1:]:
        latest = np.maximum(latest, end)
    return latest


class _Run:
    """One pass over the nodes, for some steps.

    The time of a node of the host is kept less the offsets of tasks after it; that of work from its
    base's on, less its row.
    """

    def __init__(self, drawn: _Drawn, kernels: Sequence[int], lengths: Lengths) -> None:
        self.drawn, self.of, self.kernels, self.lengths = drawn, drawn.of, kernels, lengths
        self.free: list[Floats] = []
        self.more = np.empty(lengths.shape)
        self.zeros = np.zeros(lengths.shape)
        self.times: list[Floats] = []

    def ends(self) -> Floats:
        """Return when the last task ends, ``float64[steps, draws]``."""
        drawn, times = self.drawn, self.times
        for at, (node, over) in enumerate(zip(self.of.nodes, self.of.over, strict=True)):
            time = self._start(drawn.terms[at], node.base, over)
            if node.work >= 0:
                self.lengths.add(self.kernels[node.work], drawn.shifts[at], time)
            elif node.base != FIXED:
                time += times[node.base]
            times.append(time)
            self.free += [times[other] for other in over if times[other] is not time]
        found = np.zeros(self.lengths.shape)
        for task in self.of.last:
            np.maximum(found, self._end(task), out=found)
        return found

    def _start(self, terms: Sequence[_Term], base: int, over: Sequence[int]) -> Floats:
        """Return how long after its reference a node starts, in place of a time that is over."""
        if terms and terms[0].row is None and terms[0].node in over:
            time = self.times[terms[0].node]
        else:
            time = self.free.pop() if self.free else np.empty(self.lengths.shape)
        latest = self.zeros
        for before, row in terms:
            latest = np.maximum(self._since(before, row, base), latest, out=time)
        if not terms:
            time[:] = 0.0
        return time

    def _since(self, before: int, row: Floats | float | None, base: int) -> Floats | float:
        """Return how long after the time of a base something ends."""
        kept = 0.0 if row is None else row
        if before == base:
            return kept
        of = self.of.base_of(before)
        begun: Floats | float = kept if before == FIXED else self.times[before]
        if of not in (before, base, FIXED):
            begun = np.add(begun, self.times[of], out=self.more)
        if base not in (of, FIXED):
            begun = np.subtract(begun, self.times[base], out=self.more)
        if row is None or before == FIXED:
            return begun
        return np.add(begun, row, out=self.more)

    def _end(self, task: int) -> Floats | float:
        """Return when a task ends."""
        offset, node = self.drawn.offsets[task], self.of.node[task]
        if node == FIXED:
            return offset
        kept = self.drawn.rows[node] if self.of.is_work(node) else 0.0
        return self._since(node, offset + kept, FIXED)
