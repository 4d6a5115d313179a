"""Partition of groups of ops into independent ones, which may become one op."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from irgraph.facts import FactTable, facts_of
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.verbs.refusal import describe
from irgraph.verbs.sequence import Segment, entangling_chain, segment


class Partition(Struct, frozen=True):
    """A partition of groups into sets of independent ones.

    Attributes:
        graph: the graph of the groups.
        groups: all groups.
        span: the segment that contains them.
        sets: positions of groups, each set independent, in launch order.
        knotted: groups that enclose others: a path leaves them and returns.
    """

    graph: Graph
    groups: Sequence[Collection[Op]]
    span: Segment
    sets: tuple[tuple[int, ...], ...]
    knotted: tuple[int, ...] = ()

    def tie(self, groups: Iterable[int]) -> list[tuple[Op, str]]:
        """Return a chain that ties some groups, for messages; empty if there is none."""
        tied_ops = segment(self.graph, [self.groups[i] for i in sorted(groups)])
        return describe(entangling_chain(tied_ops), tied_ops.atoms)


def partition(graph: Graph, groups: Sequence[Collection[Op]]) -> Partition:
    """Partition groups into as few independent sets as launch order allows, earlier ones first."""
    cache = facts_of(graph).setdefault(CACHE_KEY, FactTable(MAX_CACHED))
    key = tuple([tuple(group) for group in groups])
    cached: PartitionSets | None = cache.get(key)
    if cached is None:
        cached = cache[key] = _partition(segment(graph, groups), len(groups))
    return Partition(graph, groups, *cached)


PartitionSets = tuple[Segment, tuple[tuple[int, ...], ...], tuple[int, ...]]

CACHE_KEY = "irgraph.verbs.partition"
"""Attribute of a graph that caches partitions: many variants of a step partition equal groups."""

MAX_CACHED = 16


def _partition(s: Segment, count: int) -> PartitionSets:
    """Return the segment, its sets of independent groups, and the knotted ones."""
    group_ties, knotted = _ties(s, count)
    sets: list[list[int]] = []
    masks: list[int] = []
    reaching: list[int] = []
    for group in range(count):
        if group in knotted:
            continue
        own_ties = group_ties[group]
        pairs = enumerate(zip(masks, reaching, strict=True))
        compatible = (i for i, (mask, ties) in pairs if not (mask & own_ties or ties >> group & 1))
        index = next(compatible, len(sets))
        if index == len(sets):
            sets.append([])
            masks.append(0)
            reaching.append(0)
        sets[index].append(group)
        masks[index] |= 1 << group
        reaching[index] |= own_ties
    return s, tuple(map(tuple, sets)), tuple(sorted(knotted))


def _ties(s: Segment, count: int) -> tuple[list[int], set[int]]:
    """Return, as bit masks, the groups that each group depends on, and the knotted groups."""
    reaching_masks = [0] * len(s.atoms)
    group_ties = [0] * count
    knotted: set[int] = set()
    for tie in s.ties:
        before, after = s.owner[tie.before], s.owner[tie.after]
        mask = reaching_masks[tie.before]
        if before >= 0 and before != after:
            mask |= 1 << before
        if after >= 0 and before != after and mask >> after & 1:
            knotted.add(after)
        reaching_masks[tie.after] |= mask
        if after >= 0:
            group_ties[after] |= mask & ~(1 << after)
    return group_ties, knotted
