"""What draws of the host's times say of the nodes of a task graph, for all steps alike.

Times of a node are counted from its reference: for a kernel its launch, for the host what it did
before. What has begun before the reference is left out where that is sure, and kernels of which
each waits for the one before alone are put together as regions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from irgraph.schedule.steps.node_graph import FIXED, NodeGraph
from irgraph.schedule.steps.regions import Region
from irgraph.schedule.tasks import Floats, Ints


class WaitTerm(NamedTuple):
    """What a node may have to wait for after its reference.

    Attributes:
        node: the node that it comes after, ``FIXED`` for none.
        row: what is added to that node's time as it is kept, ``None`` for nothing.
    """

    node: int
    row: Floats | float | None


class HostDraws:
    """What the draws of the host's times say of each node, for all steps alike.

    Attributes:
        offsets: how long after its node's time the last task of each fold ends; of fixed ones,
            when.
        references: of each node, the offset of its reference.
        terms: of each node, what it may have to wait for after its reference.
        regions: by the nodes at which they end.
        order: the nodes that have a time: all but those of regions that are not their ends; beside
            each, the nodes that no later one needs.
        launched: when each candidate of the regions is, after the region's base and less what is
            between the kernels before it, ``float64[candidates, draws]``; candidates are counted
            from the end of the region's last row.
        tails: of each region, what is taken off its candidates to have the time that is kept.
    """

    def __init__(self, of: NodeGraph, folded: Floats, rows: Ints) -> None:
        """Take how long folds of tasks take, ``float64[folds, draws]``, and what work runs."""
        self.of = of
        self.offsets: dict[int, Floats | float] = {
            node.task: 0.0 for node in of.nodes if node.work >= 0
        }
        same = (folded == folded[:, :1]).all(1).tolist()
        for fold, row, sure in zip(of.folds, folded, same, strict=True):
            took = float(row[0]) if sure and len(row) else row
            self.offsets[fold.task] = took + _latest([self.offsets[wait] for wait in fold.starts])
        self.references = [
            self.offsets[node.reference] if node.reference >= 0 else 0.0 for node in of.nodes
        ]
        self._rows: dict[int, Floats | float] = {}
        self.terms = [list(self._terms(at)) for at in range(len(of.nodes))]
        self.regions = {region.end: region for region in self._regions(rows.tolist())}
        self.order = list(self._order())
        count = sum(region.candidates for region in self.regions.values())
        self.launched, self.tails = np.empty((count, folded.shape[1])), {}
        for end, region in self.regions.items():
            self.tails[end] = self._launch(region)

    def row(self, at: int) -> Floats | float:
        """Return what the time of work is kept less of, beside that of its base.

        Such that its follower has to wait for it where it is above zero.
        """
        if at not in self._rows:
            row = self.references[at]
            if at in self.of.follower:
                follower, wait = self.of.follower[at]
                row = self.references[follower] - self.offsets[wait]
            self._rows[at] = row
        return self._rows[at]

    def _terms(self, at: int) -> Iterator[WaitTerm]:
        """Yield what a node may have to wait for; first what its row was chosen for."""
        node, rest = self.of.nodes[at], []
        for wait in node.others:
            before = self.of.node[wait]
            if self.of.follower.get(before) == (at, wait):
                yield WaitTerm(before, None)
                continue
            row = self.offsets[wait] - self.references[at]
            if not self._earlier(before, node.base, row):
                kept = self.row(before) if self.of.is_work(before) else 0.0
                rest.append(WaitTerm(before, row + kept))
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

    def _regions(self, rows: Sequence[int]) -> Iterator[Region]:
        """Yield the regions; ``rows`` are the kernels that work runs."""
        of, first = self.of, 0
        for nodes, closing in self._chains():
            kernels = tuple(rows[of.nodes[node].work] for node in nodes)
            base = of.nodes[nodes[0]].base
            yield Region(base, tuple(nodes), closing, first, kernels)
            first += len(nodes) + (closing >= 0)

    def _chains(self) -> Iterator[tuple[list[int], int]]:
        """Yield nodes that are work, of which each waits for the one before alone.

        Beside them the node of the host that alone waits for the last of them, -1 if none does.
        """
        nodes, followers = self.of.nodes, self._followers()
        chains: dict[int, list[int]] = {}  # by the last of each
        for at, (node, terms) in enumerate(zip(nodes, self.terms, strict=True)):
            if not terms and node.work >= 0:
                chains[at] = [at]
                continue
            before = terms[0].node if len(terms) == 1 else FIXED
            if followers.get(before) != at or nodes[before].base != node.base:
                continue
            chain = chains.pop(before, None)
            if chain is None:
                continue
            if node.work < 0:
                yield chain, at
                continue
            chain.append(at)
            chains[at] = chain
        yield from ((chain, -1) for chain in chains.values() if len(chain) > 1)

    def _order(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the nodes that have a time, with those that no later one needs."""
        ends = {node: region.end for region in self.regions.values() for node in region.nodes}
        inside = {node for node, end in ends.items() if node != end}
        over: dict[int, list[int]] = {}
        for at, nodes in enumerate(self.of.over):
            into = over.setdefault(ends.get(at, at), [])
            into += (node for node in nodes if node not in inside)
            if at not in inside:
                yield at, into

    def _followers(self) -> dict[int, int]:
        """Return, for each node, the one that waits for its end if that is all that does."""
        found = {self.of.node[task]: -1 for task in self.of.last}
        for at, terms in enumerate(self.terms):
            for term in terms:
                found[term.node] = -1 if term.node in found else at
        return found

    def _launch(self, region: Region) -> Floats | float:
        """Fill in when a region's candidates are; return what is taken off to have what is kept."""
        of, before, references = self.of, -1, self.references
        between: Floats | float = 0.0
        last = region.end
        nodes = (*region.nodes, last) if region.closing >= 0 else region.nodes
        for row, at in zip(self.launched[region.first :], nodes, strict=False):
            if before >= 0:
                waits = of.nodes[at].others
                wait = waits[0] if len(waits) == 1 else self._wait(at, before)
                between = between + self.offsets[wait]
            np.subtract(references[at], between, out=row)
            before = at
        return (references[last] if region.closing >= 0 else self.row(last)) - between

    def _wait(self, at: int, before: int) -> int:
        """Return the wait by which a node comes after another."""
        (wait,) = (w for w in self.of.nodes[at].others if self.of.node[w] == before)
        return wait


def _latest(ends: Sequence[Floats | float]) -> Floats | float:
    latest: Floats | float = ends[0] if ends else 0.0
    for end in ends[1:]:
        latest = np.maximum(latest, end)
    return latest
