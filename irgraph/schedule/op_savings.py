"""Savings of a step for each of its operations, from one pass over the tasks.

Tasks of an operation follow each other. A path through the step either enters this block of tasks,
or passes it on a wait of a later task for an earlier one. So the time of the step with a faster
operation follows from ends before the block, from the block, and from the longest paths after it.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from irgraph.schedule.tasks import Floats, Ints, Tasks, total_float


class Blocks(Struct, frozen=True):
    """Blocks of consecutive tasks in order, one for each operation.

    Attributes:
        ops: the operations, ``int64[blocks]``.
        first: the first task of each, ``int64[blocks]``.
        last: the last task of each, ``int64[blocks]``.
    """

    ops: Ints
    first: Ints
    last: Ints


def op_savings(tasks: Tasks, length: Floats, ends: Floats, ops: Ints, factor: float) -> Floats:
    """Return by how many microseconds each of ``ops`` shortens the step if it is faster.

    Rounding aside the result equals a second simulation's; it is infinity for operations whose
    tasks are interleaved with tasks of other operations.
    """
    savings = np.full(len(ops), np.inf)
    blocks = _blocks(tasks, ops)
    if not len(blocks.ops):
        return savings
    tails = _Tails(tasks, length, ends)
    times = np.maximum(
        tails.times_past(blocks), _times_through(tasks, length, tails, blocks, factor)
    )
    position = np.full(int(ops.max()) + 1, -1)
    position[ops] = np.arange(len(ops))
    savings[position[blocks.ops]] = ends.max() - times
    return savings


def _blocks(tasks: Tasks, ops: Ints) -> Blocks:
    """Return the tasks of operations that no task of another one of them interrupts."""
    positions = np.flatnonzero(np.isin(tasks.op, ops))
    owners = tasks.op[positions]
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    stops = np.append(starts[1:], len(owners)) - 1
    _, block, counts = np.unique(owners[starts], return_inverse=True, return_counts=True)
    is_single = counts[block] == 1
    starts, stops = starts[is_single], stops[is_single]
    return Blocks(owners[starts], positions[starts], positions[stops])


class _Tails:
    """Longest paths from each task to the end of the step, and the waits that they follow.

    Attributes:
        ends: the end of each task, ``float64[n]``.
        earlier, later: of each wait the task that is awaited, -1 for the start of the step, and
            the task that waits, ``n`` for the end of the step.
        after: the longest path from each wait to the end of the step.
    """

    def __init__(self, tasks: Tasks, length: Floats, ends: Floats) -> None:
        count = len(tasks)
        self.ends = ends
        waits = np.diff(tasks.first)
        used = np.zeros(count, np.bool_)
        used[tasks.after] = True
        initial, final = np.flatnonzero(waits == 0), np.flatnonzero(~used)
        self.earlier = np.concatenate([tasks.after, np.full(len(initial), -1), final])
        waiting = np.repeat(np.arange(count), waits)
        self.later = np.concatenate([waiting, initial, np.full(len(final), count)])
        latest_starts = ends + total_float(tasks, ends, length) - length
        self.after = np.append(float(ends.max()) - latest_starts, 0.0)[self.later]

    def times_past(self, blocks: Blocks) -> Floats:
        """Return the longest path that has no task in each block, ``float64[blocks]``."""
        low = np.searchsorted(blocks.first, self.earlier, "right")
        high = np.searchsorted(blocks.last, self.later, "left") - 1
        spans = np.flatnonzero(low <= high)
        low, high = low[spans], high[spans]
        earlier = self.earlier[spans]
        paths = np.where(earlier >= 0, self.ends[earlier], 0.0) + self.after[spans]
        # a sparse table of maxima: each span of blocks is covered by two of a power of two
        levels = np.log2(high - low + 1).astype(np.int64)
        times = np.zeros(len(blocks.ops))
        for level in range(int(levels.max(initial=0)), -1, -1):
            width = 2**level
            at_level = levels == level
            np.maximum.at(times, low[at_level], paths[at_level])
            np.maximum.at(times, high[at_level] - width + 1, paths[at_level])
            if level:
                half = width // 2
                shifted = times[:-half].copy()
                np.maximum(times[half:], shifted, out=times[half:])
        return times

    def exits(self, blocks: Blocks, count: int) -> Floats:
        """Return for each of ``count`` tasks the longest path after it that leaves its block.

        Minus infinity if each path from it has another task of the block.
        """
        exits = np.full(count, -np.inf)
        awaited = np.flatnonzero(self.earlier >= 0)
        earlier, later = self.earlier[awaited], self.later[awaited]
        block = np.searchsorted(blocks.first, earlier, "right") - 1
        leaves = later > blocks.last[np.maximum(block, 0)]
        np.maximum.at(exits, earlier[leaves], self.after[awaited[leaves]])
        return exits


def _times_through(
    tasks: Tasks, length: Floats, tails: _Tails, blocks: Blocks, factor: float
) -> Floats:
    """Return the longest path through each block if its operation is faster."""
    exits = tails.exits(blocks, len(tasks)).tolist()
    scaled = (length / factor).tolist()
    lengths, ends, op = length.tolist(), tails.ends.tolist(), tasks.op.tolist()
    times = []
    spans = zip(blocks.ops.tolist(), blocks.first.tolist(), blocks.last.tolist(), strict=True)
    for owner, first, last in spans:
        latest = 0.0
        originals = ends[first : last + 1]
        for task in range(first, last + 1):
            start = max((ends[other] for other in tasks.wait_lists[task]), default=0.0)
            ends[task] = start + (scaled[task] if op[task] == owner else lengths[task])
            latest = max(latest, ends[task] + exits[task])
        ends[first : last + 1] = originals
        times.append(latest)
    return np.array(times)
