"""When many steps of one structure end, each under many draws of its times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from irgraph.schedule.steps.host_draws import HostDraws, WaitTerm
from irgraph.schedule.steps.node_graph import FIXED, NodeGraph
from irgraph.schedule.steps.products import KernelSamples, Lengths, Products, Sums
from irgraph.schedule.steps.regions import Flags, Region, candidates_alive, in_batches
from irgraph.schedule.tasks import Floats, Ints

TOGETHER = 64
"""Steps that go through the tasks together: with 400 draws each, few enough for a cache."""

BYTES = 2**24
"""Most that is known at once of the candidates and the kernels in several batches."""


def ends_under_draws(of: NodeGraph, folded: Floats, work: KernelSamples) -> Floats:
    """Return when the last task of each step ends under each draw, ``float64[steps, draws]``.

    ``folded`` says how long the folds of tasks take, ``float64[folds, draws]``.
    """
    drawn, products = HostDraws(of, folded, work.rows), Products(work)
    kernels = work.rows.tolist()
    found = np.empty((work.lengths.shape[1], work.errors.shape[1]))
    for some, alive in _batches(drawn, products):
        found[some] = _Run(drawn, kernels, products.of(some), alive).ends().T
    return found


def _batches(drawn: HostDraws, products: Products) -> Iterator[tuple[Ints, Flags]]:
    """Yield steps that are alike, with the candidates of regions that may be the latest in them."""
    work = products.work
    often = np.bincount(work.rows, minlength=len(work.lengths))
    batches = in_batches(np.argsort(often @ np.log1p(work.lengths), kind="stable"), TOGETHER)
    candidates, draws = drawn.launched.shape
    most = max(1, BYTES // max(1, draws * (candidates + 16 * len(work.lengths))))
    for at in range(0, len(batches), most):
        some = batches[at : at + most]
        bounds = zip(*map(products.bounds, some), strict=True)
        upper, lower = (np.stack(columns, 1) for columns in bounds)
        alive = candidates_alive(drawn.regions.values(), drawn.launched, upper, lower)
        yield from ((batch, alive[:, number]) for number, batch in enumerate(some))


class _Time:
    """The time of a node whose parts are not added up yet.

    Attributes:
        kernels: those to be added, one after the other.
        row: what is added to all steps.
        more: what else there is, ``float64[draws, steps]``.
    """

    def __init__(self, more: Floats | None = None) -> None:
        self.kernels: list[int] = []
        self.row: Floats | float = 0.0
        self.more = more

    def copy(self) -> _Time:
        """Return another one of the same parts."""
        found = _Time(None if self.more is None else self.more.copy())
        found.kernels, found.row = self.kernels.copy(), self.row
        return found

    def all(self, lengths: Lengths) -> Floats:
        """Return the time, ``float64[draws, steps]``."""
        if not self.kernels and self.more is not None and not np.any(self.row):
            return self.more
        often = np.bincount(self.kernels, minlength=len(lengths.lengths)).astype(np.float64)
        found = lengths.total(often, self.row)
        if self.more is not None:
            found += self.more
        return found


class _Run:
    """One pass over the nodes, for some steps.

    The time of a node of the host is kept less the offsets of tasks after it; that of work from its
    base's on, less its row.
    """

    def __init__(
        self, drawn: HostDraws, kernels: Sequence[int], lengths: Lengths, alive: Flags
    ) -> None:
        self.drawn, self.of, self.kernels, self.lengths = drawn, drawn.of, kernels, lengths
        self.alive, self.often = alive, alive.sum(1).tolist()
        self.sums = Sums(lengths)
        self.free: list[Floats] = []
        self.more, self.gain = np.empty(lengths.shape), np.zeros(lengths.shape)
        self.zeros = np.zeros(lengths.shape)
        self.times: list[Floats | _Time | None] = [None] * len(self.of.nodes)

    def ends(self) -> Floats:
        """Return when the last task ends, ``float64[draws, steps]``."""
        for at, over in self.drawn.order:
            region = self.drawn.regions.get(at)
            time = self._node(at, over) if region is None else self._region(region, over)
            self._forget(over, time)
            self.times[at] = time
        found = np.zeros(self.lengths.shape)
        for task in self.of.last:
            np.maximum(found, self._end(task), out=found)
        return found

    def _node(self, at: int, over: Sequence[int]) -> Floats:
        """Return the time of a node of no region."""
        node, drawn = self.of.nodes[at], self.drawn
        time = self._start(drawn.terms[at], node.base, over)
        if node.work >= 0:
            shift = drawn.references[at] - drawn.row(at)
            self.lengths.add(self.kernels[node.work], shift, time)
        elif node.base != FIXED:
            time += self._time(node.base)
        return time

    def _forget(self, over: Sequence[int], last: Floats | _Time) -> None:
        """Drop times that no later node needs, and keep their arrays for others."""
        for other in over:
            time = self.times[other]
            if isinstance(time, np.ndarray) and time is not last:
                self.free.append(time)
            self.times[other] = None

    def _region(self, region: Region, over: Sequence[int]) -> _Time:
        """Return the time of the node at which a region ends."""
        own = slice(region.first, region.first + region.candidates)
        alive, often, launched = self.alive[own], self.often[own], self.drawn.launched[own]
        best = often.index(max(often))
        time = self._begun(region, over)
        time.kernels += region.kernels[best:]
        time.row = time.row + (launched[best] - self.drawn.tails[region.end])
        if sum(often) > often[best]:
            self._delays(region, best, alive)
            if time.more is None:
                time.more = self.gain
                self.gain = np.zeros(self.lengths.shape)
            else:
                time.more += self.gain
                self.gain.fill(0.0)
        return time

    def _begun(self, region: Region, over: Sequence[int]) -> _Time:
        """Return the time of a region's base where its end is the host's, else nothing yet."""
        if region.closing < 0 or region.base == FIXED:
            return _Time()
        time = self.times[region.base]
        assert time is not None
        begun = time if isinstance(time, _Time) else _Time(time)
        if region.base not in over:
            return begun.copy()
        self.times[region.base] = None
        return begun

    def _delays(self, region: Region, best: int, alive: Flags) -> None:
        """Fill in how much later than by one candidate a region ends by any other."""
        launched = self.drawn.launched[region.first : region.first + region.candidates]
        often = self.often[region.first : region.first + region.candidates]
        for sign in (1.0, -1.0):
            self.sums.begin()
            others = range(best - 1, -1, -1) if sign > 0.0 else range(best + 1, len(often))
            before = best
            for at in (other for other in others if often[other]):
                low, high = min(at, before), max(at, before)
                self.sums.add(region.kernels[low:high], sign)
                before = at
                draws = alive[at].nonzero()[0]
                later = self.sums.under(draws, launched[at, draws] - launched[best, draws])
                self.gain[draws] = np.maximum(self.gain[draws], later, out=later)

    def _time(self, node: int) -> Floats:
        """Return a node's time as it is kept."""
        time = self.times[node]
        if isinstance(time, _Time):
            time = self.times[node] = time.all(self.lengths)
        assert time is not None
        return time

    def _start(self, terms: Sequence[WaitTerm], base: int, over: Sequence[int]) -> Floats:
        """Return how long after its reference a node starts, in place of a time that is over."""
        if terms and terms[0].row is None and terms[0].node in over:
            time = self._time(terms[0].node)
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
        kept = 0.0 if row is None else _column(row)
        if before == base:
            return kept
        of = self.of.base_of(before)
        begun: Floats | float = kept if before == FIXED else self._time(before)
        if of not in (before, base, FIXED):
            begun = np.add(begun, self._time(of), out=self.more)
        if base not in (of, FIXED):
            begun = np.subtract(begun, self._time(base), out=self.more)
        if row is None or before == FIXED:
            return begun
        return np.add(begun, kept, out=self.more)

    def _end(self, task: int) -> Floats | float:
        """Return when a task ends."""
        offset, node = self.drawn.offsets[task], self.of.node[task]
        if node == FIXED:
            return _column(offset)
        kept = self.drawn.row(node) if self.of.is_work(node) else 0.0
        return self._since(node, offset + kept, FIXED)


def _column(row: Floats | float) -> Floats | float:
    """Return a row of draws as one for many steps."""
    return row[:, None] if isinstance(row, np.ndarray) else row
