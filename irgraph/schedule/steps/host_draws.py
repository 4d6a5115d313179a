"""Draws of the host's times for the nodes of a task graph, common to all steps.

The time of a node is counted from its reference: the launch of a kernel, or the host's task before.
A wait that certainly ends before the reference is omitted. Kernels that each wait only for the one
before are combined into regions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from irgraph.schedule.steps.node_graph import FIXED, NodeGraph
from irgraph.schedule.steps.regions import Region
from irgraph.schedule.tasks import Floats, Ints


class WaitTerm(NamedTuple):
    """A wait of a node that may end after the node's reference.

    Attributes:
        node: the node that is awaited, ``FIXED`` for none.
        row: offset to add to that node's stored time, ``None`` for none.
    """

    node: int
    row: Floats | float | None


class HostDraws:
    """Offsets, waits and regions of nodes under draws of the host's times, for all steps.

    Attributes:
        graph: the nodes.
        offsets: by the last task of each fold, its end after the time of its node; the end itself
            if the node is ``FIXED``.
        references: by node, the offset of its reference.
        terms: by node, its waits that may end after its reference.
        regions: by the nodes at which they end.
        order: the nodes that have a time, which are all except the inner nodes of regions, each
            with the nodes that no later one needs.
        candidate_starts: the launch of each candidate of the regions, after the region's base and
            less the offsets between the kernels before it, ``float64[candidates, draws]``; the rows
            of a region follow those of the region before.
        tails: by the end of a region, what is subtracted from its candidates for the stored time.
    """

    def __init__(self, graph: NodeGraph, fold_lengths: Floats, rows: Ints) -> None:
        """Prepare the nodes of a graph.

        ``fold_lengths`` are the durations of folds, ``float64[folds, draws]``, and ``rows`` the
        kernels that work runs.
        """
        self.graph = graph
        self.offsets: dict[int, Floats | float] = {
            node.task: 0.0 for node in graph.nodes if node.work >= 0
        }
        are_equal = (fold_lengths == fold_lengths[:, :1]).all(1).tolist()
        for fold, row, is_fixed in zip(graph.folds, fold_lengths, are_equal, strict=True):
            duration = float(row[0]) if is_fixed and len(row) else row
            self.offsets[fold.task] = duration + _latest(
                [self.offsets[wait] for wait in fold.starts]
            )
        self.references = [
            self.offsets[node.reference] if node.reference >= 0 else 0.0 for node in graph.nodes
        ]
        self._rows: dict[int, Floats | float] = {}
        self.terms = [list(self._terms(index)) for index in range(len(graph.nodes))]
        self.regions = {region.end: region for region in self._regions(rows.tolist())}
        self.order = list(self._order())
        count = sum(region.candidates for region in self.regions.values())
        self.candidate_starts, self.tails = np.empty((count, fold_lengths.shape[1])), {}
        for end, region in self.regions.items():
            self.tails[end] = self._fill_candidates(region)

    def row(self, index: int) -> Floats | float:
        """Return the offset that the stored time of a work node lacks, in addition to its base's.

        It is chosen so that the node's follower has to wait if the stored time is positive.
        """
        if index not in self._rows:
            row = self.references[index]
            if index in self.graph.follower:
                follower, wait = self.graph.follower[index]
                row = self.references[follower] - self.offsets[wait]
            self._rows[index] = row
        return self._rows[index]

    def _terms(self, index: int) -> Iterator[WaitTerm]:
        """Yield the waits of a node that may end after its reference; first those without a row."""
        node, rest = self.graph.nodes[index], []
        for wait in node.others:
            predecessor = self.graph.node_by_task[wait]
            if self.graph.follower.get(predecessor) == (index, wait):
                yield WaitTerm(predecessor, None)
                continue
            row = self.offsets[wait] - self.references[index]
            if not self._is_earlier(predecessor, node.base, row):
                stored_row = self.row(predecessor) if self.graph.is_work(predecessor) else 0.0
                rest.append(WaitTerm(predecessor, row + stored_row))
        yield from rest

    def _is_earlier(self, predecessor: int, base: int, row: Floats | float) -> bool:
        """Return whether a node's wait certainly ends before its reference.

        ``row`` is the offset of the wait, after its predecessor, less that of the reference. The
        wait also ends before the reference if the base has waited for the predecessor.
        """
        if predecessor == base:
            return bool(np.all(row <= 0.0))
        if base == FIXED:
            return False
        waits = (
            wait
            for wait in self.graph.nodes[base].others
            if self.graph.node_by_task[wait] == predecessor
        )
        base_reference = self.references[base]
        return any(np.all(row + base_reference - self.offsets[wait] <= 0.0) for wait in waits)

    def _regions(self, rows: Sequence[int]) -> Iterator[Region]:
        """Yield the regions; ``rows`` are the kernels that work runs."""
        graph, first = self.graph, 0
        for nodes, closing in self._chains():
            kernels = tuple(rows[graph.nodes[node].work] for node in nodes)
            base = graph.nodes[nodes[0]].base
            yield Region(base, tuple(nodes), closing, first, kernels)
            first += len(nodes) + (closing >= 0)

    def _chains(self) -> Iterator[tuple[list[int], int]]:
        """Yield chains of work nodes that each wait only for the one before.

        With each comes the node of the host that alone waits for the last of them, -1 if none does.
        """
        nodes, followers = self.graph.nodes, self._followers()
        chains: dict[int, list[int]] = {}  # by the last of each
        for index, (node, terms) in enumerate(zip(nodes, self.terms, strict=True)):
            if not terms and node.work >= 0:
                chains[index] = [index]
                continue
            predecessor = terms[0].node if len(terms) == 1 else FIXED
            if followers.get(predecessor) != index or nodes[predecessor].base != node.base:
                continue
            chain = chains.pop(predecessor, None)
            if chain is None:
                continue
            if node.work < 0:
                yield chain, index
                continue
            chain.append(index)
            chains[index] = chain
        yield from ((chain, -1) for chain in chains.values() if len(chain) > 1)

    def _order(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the nodes that have a time, with those that no later one needs."""
        ends = {node: region.end for region in self.regions.values() for node in region.nodes}
        inside = {node for node, end in ends.items() if node != end}
        last_uses: dict[int, list[int]] = {}
        for index, nodes in enumerate(self.graph.last_uses):
            node_last_uses = last_uses.setdefault(ends.get(index, index), [])
            node_last_uses += (node for node in nodes if node not in inside)
            if index not in inside:
                yield index, node_last_uses

    def _followers(self) -> dict[int, int]:
        """Return, by node, the only node that waits for its end, -1 if there are several."""
        followers = {self.graph.node_by_task[task]: -1 for task in self.graph.last_tasks}
        for index, terms in enumerate(self.terms):
            for term in terms:
                followers[term.node] = -1 if term.node in followers else index
        return followers

    def _fill_candidates(self, region: Region) -> Floats | float:
        """Fill in the starts of a region's candidates and return its tail (``tails``)."""
        graph, predecessor, references = self.graph, -1, self.references
        gap_sum: Floats | float = 0.0
        last = region.end
        nodes = (*region.nodes, last) if region.closing >= 0 else region.nodes
        for row, index in zip(self.candidate_starts[region.first :], nodes, strict=False):
            if predecessor >= 0:
                waits = graph.nodes[index].others
                wait = waits[0] if len(waits) == 1 else self._wait_between(index, predecessor)
                gap_sum = gap_sum + self.offsets[wait]
            np.subtract(references[index], gap_sum, out=row)
            predecessor = index
        return (references[last] if region.closing >= 0 else self.row(last)) - gap_sum

    def _wait_between(self, index: int, predecessor: int) -> int:
        """Return the wait by which a node comes after another."""
        (wait,) = (
            w for w in self.graph.nodes[index].others if self.graph.node_by_task[w] == predecessor
        )
        return wait


def _latest(ends: Sequence[Floats | float]) -> Floats | float:
    latest: Floats | float = ends[0] if ends else 0.0
    for end in ends[1:]:
        latest = np.maximum(latest, end)
    return latest
