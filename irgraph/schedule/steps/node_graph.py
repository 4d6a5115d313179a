"""Tasks folded into nodes: what steps of one structure, under many draws of its times, wait for.

The steps differ in their device work alone, so what the host takes between two waits is drawn once
for all of them: tasks that wait for one other are folded into an offset from it. What is left to
compute for each step are its kernels, and the tasks at which the host waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from irgraph.schedule.steps.reduced_waits import reduced_waits
from irgraph.schedule.tasks import Ints, Tasks

FIXED = -1
"""Stands for the node of a task that no device work comes before: its end is drawn for all."""


class Node(NamedTuple):
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


class Fold(NamedTuple):
    """Tasks that are no work, of which each waits for the one before alone.

    Attributes:
        task: the last of them.
        starts: what the first waits for; of one that starts after several others, some of which
            come after work, the reference of its node.
    """

    task: int
    starts: tuple[int, ...]


class NodeGraph:
    """The nodes of a task graph; every other task ends some time after one of them.

    Attributes:
        waited: what each task has to wait for.
        node: the node that each task comes after, ``FIXED`` for none.
        nodes: in topological order.
        over: for each, the nodes that it is the last to need.
        follower: of work, the first node that waits for it and has the same base.
        last: tasks that no other waits for.
        folds: tasks that follow each other, folded into one.
        fold: of each task, its place among these, -1 for work, ``int64[tasks]``.
    """

    def __init__(self, tasks: Tasks, work: Ints) -> None:
        """Collapse tasks, of which those of ``work`` differ between steps, ``int64[work]``."""
        rows = dict(zip(work.tolist(), range(len(work)), strict=True))
        self.waited = reduced_waits(tasks, rows)
        self.node: list[int] = []
        self.nodes: list[Node] = []
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
        self.folds: list[Fold] = []
        self.fold: Ints = np.array(self._folded(), np.int64)

    def is_work(self, node: int) -> bool:
        """Return whether a node is device work."""
        return node != FIXED and self.nodes[node].work >= 0

    def _of(self, task: int, row: int, waits: Sequence[int]) -> Node:
        host = [wait for wait in waits if not self.is_work(self.node[wait])]
        reference = max(host, key=lambda wait: self.node[wait], default=-1)
        base = self.node[reference] if reference >= 0 else FIXED
        return Node(task, row, reference, base, tuple(w for w in waits if w != reference))

    def _folded(self) -> list[int]:
        """Fill in the folds and return that of each task."""
        asked, found = self._asked(), []
        starts = {
            node.task: (() if node.reference < 0 else (node.reference,))
            for node in self.nodes
            if node.work < 0
        }
        works = {node.task for node in self.nodes if node.work >= 0}
        for task, waits in enumerate(self.waited):
            if task in works:
                found.append(-1)
                continue
            before = found[waits[0]] if len(waits) == 1 and waits[0] not in asked else -1
            if before < 0:
                before = len(self.folds)
                self.folds.append(Fold(task, starts.get(task, tuple(waits))))
            else:
                self.folds[before] = self.folds[before]._replace(task=task)
            found.append(before)
        return found

    def _asked(self) -> set[int]:
        """Return the tasks of which it is asked when they end: all but those within chains."""
        asked, seen = set(self.last), set()
        for waits in self.waited:
            for wait in waits:
                if wait in seen or len(waits) > 1:
                    asked.add(wait)
                seen.add(wait)
        for node in self.nodes:
            asked |= {node.reference, *node.others}
        return asked

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
