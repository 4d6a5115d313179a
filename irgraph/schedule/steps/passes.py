"""Ends of many steps of one structure, each under many draws of its times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from irgraph.schedule.steps.host_draws import HostDraws, WaitTerm
from irgraph.schedule.steps.node_graph import FIXED, NodeGraph
from irgraph.schedule.steps.products import KernelSamples, Lengths, Products, Sums
from irgraph.schedule.steps.regions import Flags, Region, candidates_alive, split_batches
from irgraph.schedule.tasks import Floats, Ints

BATCH_STEPS = 64
"""Steps in one pass over the tasks: with 400 draws each, few enough for a cache."""

MAX_BYTES = 2**24
"""Maximum size of the bounds of candidates and kernels in several batches, in bytes."""


def ends_under_draws(graph: NodeGraph, fold_lengths: Floats, work: KernelSamples) -> Floats:
    """Return the end of the last task of each step under each draw, ``float64[steps, draws]``.

    ``fold_lengths`` are the durations of the folds of tasks, ``float64[folds, draws]``.
    """
    host_draws, products = HostDraws(graph, fold_lengths, work.rows), Products(work)
    kernels = work.rows.tolist()
    ends = np.empty((work.lengths.shape[1], work.errors.shape[1]))
    for steps, alive in _batches(host_draws, products):
        ends[steps] = _Run(host_draws, kernels, products.lengths_of(steps), alive).ends().T
    return ends


def _batches(host_draws: HostDraws, products: Products) -> Iterator[tuple[Ints, Flags]]:
    """Yield batches of similar steps, with the region candidates that may be the latest in them."""
    work = products.work
    counts = np.bincount(work.rows, minlength=len(work.lengths))
    batches = split_batches(np.argsort(counts @ np.log1p(work.lengths), kind="stable"), BATCH_STEPS)
    candidates, draws = host_draws.candidate_starts.shape
    group_size = max(1, MAX_BYTES // max(1, draws * (candidates + 16 * len(work.lengths))))
    for first in range(0, len(batches), group_size):
        group = batches[first : first + group_size]
        bounds = zip(*map(products.bounds, group), strict=True)
        upper, lower = (np.stack(columns, 1) for columns in bounds)
        alive = candidates_alive(
            host_draws.regions.values(), host_draws.candidate_starts, upper, lower
        )
        yield from ((batch, alive[:, number]) for number, batch in enumerate(group))


class _Time:
    """The time of a node as terms that are not added up yet.

    Attributes:
        kernels: kernels whose durations are added, one after the other.
        row: offset that is added in all steps.
        extra: other terms, ``float64[draws, steps]``.
    """

    def __init__(self, extra: Floats | None = None) -> None:
        self.kernels: list[int] = []
        self.row: Floats | float = 0.0
        self.extra = extra

    def copy(self) -> _Time:
        """Return a copy with the same terms."""
        copy = _Time(None if self.extra is None else self.extra.copy())
        copy.kernels, copy.row = self.kernels.copy(), self.row
        return copy

    def total(self, lengths: Lengths) -> Floats:
        """Return the time, ``float64[draws, steps]``."""
        if not self.kernels and self.extra is not None and not np.any(self.row):
            return self.extra
        counts = np.bincount(self.kernels, minlength=len(lengths.lengths)).astype(np.float64)
        time = lengths.total(counts, self.row)
        if self.extra is not None:
            time += self.extra
        return time


class _Run:
    """One pass over the nodes, for some steps.

    The time of a host node is stored without the offsets of the tasks after it; the time of a work
    node is stored relative to its base's, less its row (``HostDraws.row``).
    """

    def __init__(
        self, host_draws: HostDraws, kernels: Sequence[int], lengths: Lengths, alive: Flags
    ) -> None:
        self.host_draws, self.graph = host_draws, host_draws.graph
        self.kernels, self.lengths = kernels, lengths
        self.alive, self.counts = alive, alive.sum(1).tolist()
        self.sums = Sums(lengths)
        self.free: list[Floats] = []
        self.scratch, self.gain = np.empty(lengths.shape), np.zeros(lengths.shape)
        self.zeros = np.zeros(lengths.shape)
        self.times: list[Floats | _Time | None] = [None] * len(self.graph.nodes)

    def ends(self) -> Floats:
        """Return the end of the last task, ``float64[draws, steps]``."""
        for index, last_uses in self.host_draws.order:
            region = self.host_draws.regions.get(index)
            if region is None:
                time: Floats | _Time = self._node(index, last_uses)
            else:
                time = self._region(region, last_uses)
            self._release(last_uses, time)
            self.times[index] = time
        latest = np.zeros(self.lengths.shape)
        for task in self.graph.last_tasks:
            np.maximum(latest, self._end(task), out=latest)
        return latest

    def _node(self, index: int, last_uses: Sequence[int]) -> Floats:
        """Return the time of a node outside of regions."""
        node, host_draws = self.graph.nodes[index], self.host_draws
        time = self._start_offset(host_draws.terms[index], node.base, last_uses)
        if node.work >= 0:
            shift = host_draws.references[index] - host_draws.row(index)
            self.lengths.add(self.kernels[node.work], shift, time)
        elif node.base != FIXED:
            time += self._time(node.base)
        return time

    def _release(self, released_nodes: Sequence[int], last: Floats | _Time) -> None:
        """Drop times that no later node needs, and make their arrays available for others."""
        for other in released_nodes:
            time = self.times[other]
            if isinstance(time, np.ndarray) and time is not last:
                self.free.append(time)
            self.times[other] = None

    def _region(self, region: Region, last_uses: Sequence[int]) -> _Time:
        """Return the time of the node at which a region ends."""
        span = slice(region.first, region.first + region.candidates)
        alive, counts = self.alive[span], self.counts[span]
        launched = self.host_draws.candidate_starts[span]
        best = counts.index(max(counts))
        time = self._base_time(region, last_uses)
        time.kernels += region.kernels[best:]
        time.row = time.row + (launched[best] - self.host_draws.tails[region.end])
        if sum(counts) > counts[best]:
            self._fill_delays(region, best, alive)
            if time.extra is None:
                time.extra = self.gain
                self.gain = np.zeros(self.lengths.shape)
            else:
                time.extra += self.gain
                self.gain.fill(0.0)
        return time

    def _base_time(self, region: Region, last_uses: Sequence[int]) -> _Time:
        """Return the time of a region's base if a host node ends the region, else an empty time."""
        if region.closing < 0 or region.base == FIXED:
            return _Time()
        time = self.times[region.base]
        assert time is not None
        copyable_time = time if isinstance(time, _Time) else _Time(time)
        if region.base not in last_uses:
            return copyable_time.copy()
        self.times[region.base] = None
        return copyable_time

    def _fill_delays(self, region: Region, best: int, alive: Flags) -> None:
        """Set ``gain`` to how much later a region ends by any candidate than by the best one."""
        launched = self.host_draws.candidate_starts[region.first : region.first + region.candidates]
        counts = self.counts[region.first : region.first + region.candidates]
        for sign in (1.0, -1.0):
            self.sums.reset()
            others = range(best - 1, -1, -1) if sign > 0.0 else range(best + 1, len(counts))
            previous = best
            for candidate in (other for other in others if counts[other]):
                low, high = min(candidate, previous), max(candidate, previous)
                self.sums.add(region.kernels[low:high], sign)
                previous = candidate
                draws = alive[candidate].nonzero()[0]
                later = self.sums.sums_of(draws, launched[candidate, draws] - launched[best, draws])
                self.gain[draws] = np.maximum(self.gain[draws], later, out=later)

    def _time(self, node: int) -> Floats:
        """Return a node's stored time."""
        time = self.times[node]
        if isinstance(time, _Time):
            time = self.times[node] = time.total(self.lengths)
        assert time is not None
        return time

    def _start_offset(
        self, terms: Sequence[WaitTerm], base: int, last_uses: Sequence[int]
    ) -> Floats:
        """Return a node's start after its reference, in the array of a released time if any."""
        if terms and terms[0].row is None and terms[0].node in last_uses:
            time = self._time(terms[0].node)
        else:
            time = self.free.pop() if self.free else np.empty(self.lengths.shape)
        latest = self.zeros
        for predecessor, row in terms:
            latest = np.maximum(self._time_after(predecessor, row, base), latest, out=time)
        if not terms:
            time[:] = 0.0
        return time

    def _time_after(
        self, predecessor: int, row: Floats | float | None, base: int
    ) -> Floats | float:
        """Return the end of a wait, ``row`` after its predecessor, relative to a base's time."""
        offset = 0.0 if row is None else _column(row)
        if predecessor == base:
            return offset
        predecessor_base = self.graph.base_of(predecessor)
        time: Floats | float = offset if predecessor == FIXED else self._time(predecessor)
        if predecessor_base not in (predecessor, base, FIXED):
            time = np.add(time, self._time(predecessor_base), out=self.scratch)
        if base not in (predecessor_base, FIXED):
            time = np.subtract(time, self._time(base), out=self.scratch)
        if row is None or predecessor == FIXED:
            return time
        return np.add(time, offset, out=self.scratch)

    def _end(self, task: int) -> Floats | float:
        """Return the end of a task."""
        offset, node = self.host_draws.offsets[task], self.graph.node_by_task[task]
        if node == FIXED:
            return _column(offset)
        stored_row = self.host_draws.row(node) if self.graph.is_work(node) else 0.0
        return self._time_after(node, offset + stored_row, FIXED)


def _column(row: Floats | float) -> Floats | float:
    """Return a row of draws as a column, which numpy broadcasts over the steps."""
    return row[:, None] if isinstance(row, np.ndarray) else row
