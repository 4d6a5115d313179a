"""Times of tasks that share a resource: concurrent tasks run slower.

The model: tasks of one pool that run at the same time get equal shares of it, so each of ``k``
runs at ``1 / k`` of its speed alone. Work is conserved: two kernels that each fill the device take
as long together as in sequence. Tasks on different hardware do not share: copies in each direction
have a separate engine next to the multiprocessors, and collectives have the links. In traces of
four V100 whose compute overlaps all-to-all, kernels concurrent with a collective take 1.0 times
their time alone (median of 49), with another kernel 1.5 to 2.0 times, depending on how one counts
(medians of 8, from 0.8 to 5: too few to say more).
"""

from __future__ import annotations

import heapq

import numpy as np

from irgraph.schedule.tasks import Floats, Tasks, run


class Links:
    """Waits, followers and pools of tasks, shared by all runs of the same tasks."""

    def __init__(self, tasks: Tasks) -> None:
        self.pool: list[int] = tasks.pool.tolist()
        self.wait_counts = [len(waits) for waits in tasks.wait_lists]
        self.followers: list[list[int]] = [[] for _ in self.wait_counts]
        for task, waits in enumerate(tasks.wait_lists):
            for other in waits:
                self.followers[other].append(task)


def run_sharing(
    tasks: Tasks, length: Floats | None = None, links: Links | None = None
) -> tuple[Floats, Floats]:
    """Return the starts and the ends of tasks, ``float64[n]`` each.

    Without two resources in one pool this is ``tasks.run``; else events are run in order of time.
    ``links`` are the links of the tasks, if they are available.
    """
    task_lengths = tasks.length if length is None else length
    if not tasks.shared_pools:
        return run(tasks, task_lengths)
    return _Events(links or Links(tasks), task_lengths).run()


class _Pool:
    """A pool with its own clock, which runs at ``1 / k`` speed while ``k`` tasks share it."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.updated_at = 0.0
        self.running: list[tuple[float, int]] = []
        self.version = 0

    def advance(self, time: float) -> None:
        # The clock counts the work that each running task has had: with k of them it advances by 1
        # / k of the time, so that a task's end on it is fixed when it starts and the heap never
        # changes order.
        if self.running:
            self.clock += (time - self.updated_at) / len(self.running)
        else:
            self.clock = 0.0
        self.updated_at = time
        self.version += 1

    def next_end(self) -> float:
        """Return the end of the first of the running tasks if nothing changes."""
        return self.updated_at + (self.running[0][0] - self.clock) * len(self.running)


class _Events:
    """One run, event by event: tasks end, others become ready, pools speed up and slow down."""

    def __init__(self, links: Links, length: Floats) -> None:
        self.length: list[float] = length.tolist()
        self.pool, self.followers = links.pool, links.followers
        self.pools = {pool: _Pool() for pool in set(self.pool) if pool >= 0}
        self.wait_counts = links.wait_counts.copy()
        self.start = [0.0] * len(self.wait_counts)
        self.end = [0.0] * len(self.wait_counts)
        # time, task (-1: the first of a pool to end), then the pool and its version at that time
        self.events: list[tuple[float, int, int, int]] = []

    def run(self) -> tuple[Floats, Floats]:
        for task, count in enumerate(self.wait_counts):
            if not count:
                self._start(task, 0.0)
        while self.events:
            time, task, pool, version = heapq.heappop(self.events)
            if task >= 0:
                self._end(task, time)
            # an event planned before another task joined or left the pool is out of date: the heap
            # has a newer one
            elif self.pools[pool].version == version:
                self._end_next_of_pool(pool, time)
        return np.array(self.start), np.array(self.end)

    def _start(self, task: int, time: float) -> None:
        self.start[task] = time
        pool = self.pool[task]
        if pool < 0:
            heapq.heappush(self.events, (time + self.length[task], task, -1, 0))
            return
        pool_state = self.pools[pool]
        pool_state.advance(time)
        heapq.heappush(pool_state.running, (pool_state.clock + self.length[task], task))
        self._schedule_next_end(pool)

    def _schedule_next_end(self, pool: int) -> None:
        pool_state = self.pools[pool]
        if pool_state.running:
            heapq.heappush(self.events, (pool_state.next_end(), -1, pool, pool_state.version))

    def _end_next_of_pool(self, pool: int, time: float) -> None:
        pool_state = self.pools[pool]
        pool_state.advance(time)
        _, task = heapq.heappop(pool_state.running)
        self._schedule_next_end(pool)
        self._end(task, time)

    def _end(self, task: int, time: float) -> None:
        self.end[task] = time
        for follower in self.followers[task]:
            self.wait_counts[follower] -= 1
            if not self.wait_counts[follower]:
                self._start(follower, time)
