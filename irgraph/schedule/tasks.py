"""Steps as columns of numbers: tasks with lengths and waits.

The core that schedulers, rank simulation and what-if questions share. A task starts when the last
of the tasks it waits for has ended; a resource that does one thing at a time, in a fixed order, is
a wait for the task before. So times follow in one pass, for one set of lengths or for many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from irgraph.schedule.building.task_templates import Repeats, TaskTemplate

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


class Tasks(Struct, frozen=True, dict=True):
    """Columns of ``n`` tasks in topological order. Times in microseconds.

    Attributes:
        length: duration of each, ``float64[n]``.
        first: index of its first wait in ``after``, ``int64[n + 1]``.
        after: positions of the tasks it waits for, its own resource's first, ``int64[m]``.
        resource: index of the thread or stream, ``int64[n]``.
        cause: index into ``causes``, ``int64[n]``.
        op: index of the operation it belongs to, -1 for none, ``int64[n]``.
        kernel: index of the kernel that runs or is launched, -1 for none, ``int64[n]``.
        pool: hardware that it shares with concurrent tasks, -1 for none, ``int64[n]``.
        causes: names that ``cause`` refers to.
    """

    length: Floats
    first: Ints
    after: Ints
    resource: Ints
    cause: Ints
    op: Ints
    kernel: Ints
    pool: Ints
    causes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.length)

    def waits(self, task: int) -> Ints:
        """Return the positions of the tasks that a task waits for."""
        return self.after[self.first[task] : self.first[task + 1]]

    def has_cause(self, cause: str) -> NDArray[np.bool_]:
        """Return for each task whether this is its cause."""
        index = self.causes.index(cause) if cause in self.causes else -1
        mask: NDArray[np.bool_] = self.cause == index
        return mask

    @cached_property
    def shared_pools(self) -> list[int]:
        """The pools in which more than one resource has tasks."""
        resource_count = int(self.resource.max(initial=0)) + 1
        codes = self.pool * resource_count + self.resource
        used_codes = np.unique(codes[self.pool >= 0]).tolist()
        counts = Counter(number // resource_count for number in used_codes)
        return sorted(pool for pool, count in counts.items() if count > 1)

    @cached_property
    def two_waits(self) -> tuple[Ints, Ints] | None:
        """The two tasks that each task waits for, ``n`` for none; ``None`` if a task has more."""
        count = np.diff(self.first)
        if count.max(initial=0) > 2:
            return None
        after = np.append(self.after, [0, 0])  # so that reading beyond the end finds something
        first_wait = np.where(count > 0, after[self.first[:-1]], len(self))
        return first_wait, np.where(count > 1, after[self.first[:-1] + 1], len(self))

    @cached_property
    def wait_lists(self) -> list[list[int]]:
        """Waits of each task as lists, which a pass in Python reads fastest."""
        bounds = self.first.tolist()
        after = self.after.tolist()
        return [after[a:b] for a, b in pairwise(bounds)]

    @cached_property
    def is_final(self) -> list[bool]:
        """Whether no task waits for each task."""
        final = np.ones(len(self), np.bool_)
        final[self.after] = False
        return final.tolist()

    @cached_property
    def last_uses(self) -> list[list[int]]:
        """For each task, the tasks that it is the last to wait for."""
        last_user = {other: task for task, waits in enumerate(self.wait_lists) for other in waits}
        uses: list[list[int]] = [[] for _ in self.wait_lists]
        for other, task in last_user.items():
            uses[task].append(other)
        return uses


class TaskBuilder:
    """Collects tasks, one at a time or from a template, on any number of resources."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, int, int, int, int, int]] = []
        self._first = [0]
        self._after: list[int] = []
        self._causes: dict[str, int] = {}
        self._last: dict[int, int] = {}
        self._count = 0
        self._repeats = Repeats()

    def __len__(self) -> int:
        return self._count

    def last(self, resource: int) -> int:
        """Return the last task of a resource, -1 if it has none."""
        return self._last.get(resource, -1)

    def add(
        self,
        resource: int,
        cause: str,
        length: float,
        *,
        op: int = -1,
        kernel: int = -1,
        pool: int = -1,
        waits: Iterable[int] = (),
        ordered: bool = True,
    ) -> int:
        """Add a task of ``length`` microseconds and return its position.

        It starts after its resource's last one and after ``waits``. One that is not ``ordered``
        starts after ``waits`` only, and no task waits for it implicitly.
        """
        after = self._after
        position = self._count
        self._count = position + 1
        if ordered:
            predecessor = self._last.get(resource)
            if predecessor is not None:
                after.append(predecessor)
            self._last[resource] = position
        after.extend(waits)
        self._first.append(len(after))
        code = self._causes.get(cause)
        if code is None:
            code = self._causes[cause] = len(self._causes)
        self._rows.append((length, resource, code, op, kernel, pool))
        return position

    @property
    def last_by_resource(self) -> dict[int, int]:
        """The last task of each resource."""
        return self._last.copy()

    def template_since(
        self, since: int, last: Mapping[int, int], others: Mapping[int, int]
    ) -> TaskTemplate:
        """Return a template of the tasks that were added separately since a position.

        ``last`` are the last tasks of resources before it, by resource; ``others`` are keys of
        other earlier tasks that the new ones wait for, by position.
        """
        start = len(self._rows) - (self._count - since)
        resources = {position: resource for resource, position in last.items()}
        waits = self._after[self._first[start] :]
        outer_waits = [
            (index, resources.get(task, -1), others.get(task, -1))
            for index, task in enumerate(waits)
            if task < since
        ]
        last_tasks = [
            (r, position - since) for r, position in self._last.items() if position >= since
        ]
        code = self._causes.get("kernel", -1)
        work = [offset for offset, row in enumerate(self._rows[start:]) if row[2] == code]
        count = self._count - since
        return TaskTemplate(
            start, count, since, len(waits), tuple(outer_waits), tuple(last_tasks), tuple(work)
        )

    def repeat(
        self,
        template: TaskTemplate,
        op: int,
        kernel: int,
        times: Iterable[float],
        others: Sequence[int] = (),
    ) -> int:
        """Add the tasks of a template again and return the position of the first.

        ``op`` and ``kernel`` are added to their numbers, ``times`` are the lengths of the kernels,
        and ``others`` the tasks that replace those with keys.
        """
        repeats, last, since = self._repeats, self._last, self._count
        repeats.add_rows(len(self._rows))
        waits = repeats.waits + len(self._after)
        for index, resource, key in template.outer_waits:
            repeats.places.append(waits + index)
            repeats.tasks.append(last[resource] if resource >= 0 else others[key])
        for resource, last_offset in template.last:
            last[resource] = since + last_offset
        repeats.work += [since + offset for offset in template.work]
        repeats.times += times
        repeats.waits += template.waits
        repeats.runs.append((template.start, template.count, since - template.since, op, kernel))
        self._count = since + template.count
        return since

    def tasks(self) -> Tasks:
        """Return the collected tasks as columns."""
        length, *columns = zip(*self._rows, strict=True) if self._rows else [()] * 6
        index_columns = (
            np.array(column, np.int64) for column in (self._first, self._after, *columns)
        )
        task_columns = self._repeats.expand(np.array(length, np.float64), *index_columns)
        return Tasks(*task_columns, tuple(self._causes))


def run(tasks: Tasks, length: Floats | None = None) -> tuple[Floats, Floats]:
    """Return the starts and the ends of tasks, ``float64[n]`` each.

    ``length`` replaces the tasks' own lengths.
    """
    lengths = (tasks.length if length is None else length).tolist()
    if tasks.two_waits is None:
        return _run_any(tasks, lengths)
    first_waits, second_waits = tasks.two_waits
    ends = [0.0] * (len(lengths) + 1)
    rows = zip(first_waits.tolist(), second_waits.tolist(), lengths, strict=True)
    for position, (first, second, time) in enumerate(rows):
        start = ends[first]
        end = ends[second]
        ends[position] = (end if end > start else start) + time
    end_times = np.array(ends)
    return np.maximum(end_times[first_waits], end_times[second_waits]), end_times[:-1]


def _run_any(tasks: Tasks, lengths: list[float]) -> tuple[Floats, Floats]:
    """Return the result of ``run`` for tasks that wait for any number of others."""
    starts = [0.0] * len(tasks)
    ends = [0.0] * len(tasks)
    for position, (waits, time) in enumerate(zip(tasks.wait_lists, lengths, strict=True)):
        start = 0.0
        for other in waits:
            end = ends[other]
            if end > start:
                start = end
        starts[position] = start
        ends[position] = start + time
    return np.array(starts), np.array(ends)


def last_ends(
    tasks: Tasks, lengths: Iterable[Floats | float], sets: int, *, task: int | None = None
) -> Floats:
    """Return the end of the last task under ``sets`` sets of lengths, ``float64[sets]``.

    ``lengths`` gives the lengths of each task in turn, ``float64[sets]`` or one for all sets. An
    end is dropped once the last task that waits for it is placed. With ``task`` the end of that
    task is returned instead; no other task may wait for it.
    """
    ends: list[Floats] = []
    start = final_end = np.zeros(sets)
    rows = zip(lengths, tasks.wait_lists, tasks.last_uses, tasks.is_final, strict=True)
    for length, waits, last_uses, is_final in rows:
        # ``start`` is never written to: ``np.maximum`` and ``+`` below return new arrays.
        latest = ends[waits[0]] if waits else start
        for other in waits[1:]:
            latest = np.maximum(latest, ends[other])
        end = latest + length
        if is_final and task is None:
            final_end, end = np.maximum(final_end, end), FORGOTTEN
        ends.append(end)
        for other in last_uses:
            ends[other] = FORGOTTEN
    return final_end if task is None else ends[task]


FORGOTTEN = np.empty(0)
"""Placeholder of ends that no later task waits for."""


def longest_chain(tasks: Tasks, ends: Floats) -> Ints:
    """Return the tasks from the start to the last end, each starting where the one before ended.

    If two tasks that a task waited for ended at the same time, the first is chosen: its resource's.
    """
    chain: list[int] = []
    end_times: list[float] = ends.tolist()
    waits = [int(np.argmax(ends))] if end_times else []
    while waits:
        latest = waits[0]
        for other in waits[1:]:
            if end_times[other] > end_times[latest]:
                latest = other
        chain.append(latest)
        waits = tasks.wait_lists[latest]
    return np.array(chain[::-1], np.int64)


def total_float(tasks: Tasks, ends: Floats, length: Floats | None = None) -> Floats:
    """Return the total float of tasks: how much later each could end without delaying the last."""
    if not len(tasks):
        return np.empty(0)
    step = float(ends.max())
    lengths = (tasks.length if length is None else length).tolist()
    latest = [step] * len(tasks)
    waited = tasks.wait_lists
    # Backward pass of the critical path method: the latest end that delays nothing.
    for position in reversed(range(len(lengths))):
        start = latest[position] - lengths[position]
        for other in waited[position]:
            if start < latest[other]:
                latest[other] = start
    slack = np.array(latest) - ends
    # Sums taken forward and backward differ by rounding: what is critical has a float of exactly 0.
    slack[slack <= 1e-9 * step] = 0.0
    return slack


def topological_order(waits: Sequence[Sequence[int]]) -> list[int]:
    """Return a topological order of tasks (Kahn).

    Raises ``ValueError`` if tasks wait for each other.
    """
    wait_counts = [len(w) for w in waits]
    followers: list[list[int]] = [[] for _ in waits]
    for task, task_waits in enumerate(waits):
        for other in task_waits:
            followers[other].append(task)
    order = [task for task, count in enumerate(wait_counts) if not count]
    for task in order:
        for follower in followers[task]:
            wait_counts[follower] -= 1
            if not wait_counts[follower]:
                order.append(follower)
    if len(order) < len(wait_counts):
        raise ValueError("tasks wait for each other")
    return order
