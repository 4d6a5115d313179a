"""Templates of repeated tasks: rows that are reused at other positions and for other ops."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Columns: TypeAlias = tuple[Floats, Ints, Ints, Ints, Ints, Ints, Ints, Ints]
"""Length, first, after, resource, cause, op, kernel and pool, as in ``tasks.Tasks``."""


class TaskTemplate(Struct, frozen=True):
    """Tasks that were added one after the other and can be added again.

    Attributes:
        start, count: first row and number of rows.
        since: the position of the first task.
        waits: total number of waits.
        outer_waits: the waits for earlier tasks: the index among all waits, the resource whose last
            task it is (-1: of none), and else its key.
        last: the resources that they use, each with the offset of its last task.
        work: offsets of the tasks that are kernels.
    """

    start: int
    count: int
    since: int
    waits: int
    outer_waits: tuple[tuple[int, int, int], ...]
    last: tuple[tuple[int, int], ...]
    work: tuple[int, ...]


class Repeats:
    """Mapping of rows to the tasks that they represent.

    Attributes:
        runs: sequences of rows: the first row, the number of rows, and the offsets of positions,
            op numbers and kernel numbers.
        places, tasks: indices of waits among all waits, and the tasks that are awaited.
        work, times: positions of kernels, and their lengths.
        waits: number of waits of the repeated tasks.
    """

    def __init__(self) -> None:
        self.runs: list[tuple[int, int, int, int, int]] = []
        self.places: list[int] = []
        self.tasks: list[int] = []
        self.work: list[int] = []
        self.times: list[float] = []
        self.waits = 0
        self._next_row = 0

    def add_rows(self, rows: int) -> None:
        """Add a run of the rows that were added since the last run, without offsets."""
        if rows > self._next_row:
            self.runs.append((self._next_row, rows - self._next_row, 0, 0, 0))
            self._next_row = rows

    def expand(
        self,
        length: Floats,
        first: Ints,
        after: Ints,
        resource: Ints,
        cause: Ints,
        op: Ints,
        kernel: Ints,
        pool: Ints,
    ) -> Columns:
        """Return the columns of all tasks, from those of the rows."""
        if not self.runs:
            return length, first, after, resource, cause, op, kernel, pool
        self.add_rows(len(length))
        start, count, places, ops, kernels = np.array(self.runs, np.int64).T
        rows = _ranges(start, count)
        waits = first[start + count] - first[start]
        awaited = after[_ranges(first[start], waits)] + np.repeat(places, waits)
        awaited[self.places] = self.tasks
        times, numbers = length[rows], kernel[rows]
        times[self.work] = self.times
        firsts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(np.diff(first)[rows], out=firsts[1:])
        launched = np.where(numbers >= 0, numbers + np.repeat(kernels, count), -1)
        numbered = op[rows] + np.repeat(ops, count)
        return times, firsts, awaited, resource[rows], cause[rows], numbered, launched, pool[rows]


def _ranges(start: Ints, count: Ints) -> Ints:
    """Return ``count`` consecutive numbers from each start on, concatenated."""
    ends = np.cumsum(count)
    numbers: Ints = np.arange(ends[-1]) + np.repeat(start - ends + count, count)
    return numbers
