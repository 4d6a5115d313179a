"""Tasks folded into nodes, for steps of one structure under many draws of their times.

The steps differ only in their device work, so the host's time between two waits is drawn once for
all of them: tasks that wait for one other task are folded into an offset from it. For each step,
only its kernels remain to be computed, and the tasks at which the host waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from irgraph.schedule.steps.reduced_waits import reduced_waits
from irgraph.schedule.tasks import Ints, Tasks

FIXED = -1
"""Index in place of a node for tasks before all device work: their ends are drawn once for all."""


class Node(NamedTuple):
    """A task that is device work, or that starts after the later of several others.

    Attributes:
        task: its position.
        work: its row among the work, -1 for none.
        reference: the wait that its time is counted from, -1 for the step's beginning.
        base: the node of that wait: one of the host, or ``FIXED``.
        others: its other waits.
    """

    task: int
    work: int
    reference: int
    base: int
    others: tuple[int, ...]


class Fold(NamedTuple):
    """Tasks without work that each wait only for the one before.

    Attributes:
        task: the last of them.
        starts: waits of the first; if it has several, some of which come after work, only the
            reference of its node.
    """

    task: int
    starts: tuple[int, ...]


class NodeGraph:
    """The nodes of a task graph; every other task ends some time after one of them.

    Attributes:
        wait_lists: reduced waits of each task.
        node_by_task: the node that each task comes after, ``FIXED`` for none.
        nodes: in topological order.
        last_uses: for each node, the nodes that it is the last to need.
        follower: by work node, the first node with the same base that waits for it, and the wait.
        last_tasks: tasks that no other waits for.
        folds: tasks that follow each other, folded into one.
        fold_by_task: the index of each task's fold, -1 for work, ``int64[tasks]``.
    """

    def __init__(self, tasks: Tasks, work: Ints) -> None:
        """Fold tasks, of which those of ``work`` differ between steps, ``int64[work]``."""
        rows = dict(zip(work.tolist(), range(len(work)), strict=True))
        self.wait_lists = reduced_waits(tasks, rows)
        self.node_by_task: list[int] = []
        self.nodes: list[Node] = []
        for task, waits in enumerate(self.wait_lists):
            row = rows.get(task, -1)
            varying_waits = [w for w in waits if self.node_by_task[w] != FIXED]
            if row >= 0 or (varying_waits and len(waits) > 1):
                self.nodes.append(self._new_node(task, row, waits))
                self.node_by_task.append(len(self.nodes) - 1)
            else:
                self.node_by_task.append(
                    self.node_by_task[varying_waits[0]] if varying_waits else FIXED
                )
        awaited_tasks = {other for waits in self.wait_lists for other in waits}
        self.last_tasks = [task for task in range(len(tasks)) if task not in awaited_tasks]
        self.last_uses = self._find_last_uses()
        self.follower: dict[int, tuple[int, int]] = {}
        for index, node in enumerate(self.nodes):
            for other in node.others:
                predecessor = self.node_by_task[other]
                if self.is_work(predecessor) and self.nodes[predecessor].base == node.base:
                    self.follower.setdefault(predecessor, (index, other))
        self.folds: list[Fold] = []
        self.fold_by_task: Ints = np.array(self._fold_tasks(), np.int64)

    def is_work(self, node: int) -> bool:
        """Return whether a node is device work."""
        return node != FIXED and self.nodes[node].work >= 0

    def _new_node(self, task: int, row: int, waits: Sequence[int]) -> Node:
        host = [wait for wait in waits if not self.is_work(self.node_by_task[wait])]
        reference = max(host, key=lambda wait: self.node_by_task[wait], default=-1)
        base = self.node_by_task[reference] if reference >= 0 else FIXED
        return Node(task, row, reference, base, tuple(w for w in waits if w != reference))

    def _fold_tasks(self) -> list[int]:
        """Fill in the folds and return the fold of each task, -1 for work."""
        fold_ends, fold_by_task = self._fold_ends(), []
        starts = {
            node.task: (() if node.reference < 0 else (node.reference,))
            for node in self.nodes
            if node.work < 0
        }
        works = {node.task for node in self.nodes if node.work >= 0}
        for task, waits in enumerate(self.wait_lists):
            if task in works:
                fold_by_task.append(-1)
                continue
            fold = fold_by_task[waits[0]] if len(waits) == 1 and waits[0] not in fold_ends else -1
            if fold < 0:
                fold = len(self.folds)
                self.folds.append(Fold(task, starts.get(task, tuple(waits))))
            else:
                self.folds[fold] = self.folds[fold]._replace(task=task)
            fold_by_task.append(fold)
        return fold_by_task

    def _fold_ends(self) -> set[int]:
        """Return the tasks whose ends are needed: all except those inside chains."""
        fold_ends, awaited_tasks = set(self.last_tasks), set()
        for waits in self.wait_lists:
            for wait in waits:
                if wait in awaited_tasks or len(waits) > 1:
                    fold_ends.add(wait)
                awaited_tasks.add(wait)
        for node in self.nodes:
            fold_ends |= {node.reference, *node.others}
        return fold_ends

    def _find_last_uses(self) -> list[list[int]]:
        """Return, for each node, the nodes that it is the last to need."""
        last_user: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            for used_node in (self.node_by_task[wait] for wait in node.others):
                last_user[used_node] = last_user[self.base_of(used_node)] = index
            last_user[node.base] = index
        final_nodes = {self.node_by_task[task] for task in self.last_tasks}
        final_nodes |= {FIXED, *map(self.base_of, final_nodes)}
        last_uses: list[list[int]] = [[] for _ in self.nodes]
        for index, user in last_user.items():
            if index not in final_nodes:
                last_uses[user].append(index)
        return last_uses

    def base_of(self, node: int) -> int:
        """Return the host node from which a node's time is stored: of a host node, itself."""
        return self.nodes[node].base if self.is_work(node) else node
