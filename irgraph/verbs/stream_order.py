"""Whether ops on different streams that depend on each other run in order."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from msgspec import Struct

from irgraph.ir.dependence import Dependence, dependences
from irgraph.ir.graph import Graph
from irgraph.ir.live_out import HOST_READS
from irgraph.ir.op import Op
from irgraph.verbs.launch_order import declared
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.streams import works

CONFLICTS = ("raw", "war", "waw")


class StreamOrder(Struct, frozen=True, dict=True):
    """A graph's leaves, and what depends on what across streams."""

    graph: Graph

    @cached_property
    def leaves(self) -> Sequence[Op]:
        """The leaves in launch order."""
        return list(self.graph.leaves())

    @cached_property
    def ties(self) -> Sequence[Dependence]:
        """Dependences between leaves that give a device work on different streams."""
        leaves = self.leaves
        if len({leaf.stream for leaf in leaves}) < 2:
            return []
        return [
            tie
            for tie in dependences(leaves, declared(self.graph))
            if tie.kind in CONFLICTS
            and leaves[tie.before].stream != leaves[tie.after].stream
            and works(leaves[tie.before])
            and works(leaves[tie.after])
        ]

    @cached_property
    def open(self) -> frozenset[Dependence]:
        """The dependences that nothing orders as the graph stands."""
        return frozenset(self.loose())

    def loose(self, gone: Collection[int] = ()) -> list[Dependence]:
        """Return the dependences that nothing orders, were the ops of these ids not there."""
        there = [tie for tie in self.ties if id(self.leaves[tie.before]) not in gone]
        free = self._free({(tie.before, tie.after) for tie in there}, gone)
        return [tie for tie in there if (tie.before, tie.after) in free]

    def _free(
        self, pairs: Collection[tuple[int, int]], gone: Collection[int] = ()
    ) -> set[tuple[int, int]]:
        """Return the pairs of leaves, by position, of which nothing orders the first before."""
        before: dict[int, list[int]] = {}
        for first, then in pairs:
            before.setdefault(then, []).append(first)
        seen, found = _Completed(), set()
        for here, leaf in enumerate(self.leaves if before else ()):
            if id(leaf) not in gone:
                seen.add(here, leaf)
                found |= {
                    (i, here)
                    for i in before.get(here, ())
                    if self.leaves[i].stream != leaf.stream and not seen.follows(leaf, i)
                }
        return found

    def lost(self, old: StreamOrder) -> list[Dependence]:
        """Return the dependences without order whose ops had one in an older graph, or are new.

        Ops of both graphs are those that make, or else use, the same names.
        """
        if not self.open or not old.open:
            return sorted(self.open, key=lambda tie: tie.after)
        places: dict[Hashable, list[int]] = {}
        for i, leaf in enumerate(old.leaves):
            for name in _names(leaf):
                places.setdefault(name, []).append(i)
        pairs = {tie: self._pairs(tie, places) for tie in self.open}
        free = old._free({pair for each in pairs.values() for pair in each})
        tied = {(tie.before, tie.after) for tie in old.ties}
        lost = [tie for tie, each in pairs.items() if not each or not (each & tied or each) <= free]
        return sorted(lost, key=lambda tie: tie.after)

    def _pairs(
        self, tie: Dependence, places: Mapping[Hashable, Sequence[int]]
    ) -> set[tuple[int, int]]:
        """Return where the two ops of a dependence stand in an older graph."""
        first, then = (
            {i for leaf in leaves for name in _names(leaf) for i in places.get(name, ())}
            for leaves in ([self.leaves[tie.before]], self._stand_ins(tie.after, places))
        )
        return {(i, j) for i in first for j in then if i < j}

    def _stand_ins(self, here: int, places: Mapping[Hashable, Sequence[int]]) -> list[Op]:
        """Return a leaf that an older graph has, or the next ones that a new one works for."""
        leaf = self.leaves[here]
        if any(name in places for name in _names(leaf)):
            return [leaf]
        made, found = {tensor.name for tensor in leaf.outputs}, []
        for later in self.leaves[here + 1 :]:
            if later.stream != leaf.stream or not made & {t.name for t in later.inputs}:
                continue
            if any(name in places for name in _names(later)):
                found.append(later)
            else:
                made |= {tensor.name for tensor in later.outputs}
        return found

    def check(self, gone: Collection[int]) -> None:
        """Refuse to take these ops (by id) out where that leaves a dependence without order."""
        lost = [tie for tie in self.loose(gone) if tie not in self.open]
        if lost:
            raise RefusedError(*explain(lost[0], self.leaves), of_order=True)


@dataclass
class _Completed:
    """What has ended, for certain, where the next op of a stream starts.

    For each stream, and for the host under the name ``None``, the position up to which the work of
    every other stream has ended.
    """

    last: dict[str, int] = field(default_factory=dict)
    known: dict[str | None, dict[str, int]] = field(default_factory=dict)
    events: dict[str, dict[str, int]] = field(default_factory=dict)
    stream_of: dict[int, str] = field(default_factory=dict)

    def add(self, here: int, leaf: Op) -> None:
        mine = self.known.setdefault(leaf.stream, {})
        _join(mine, self.known.get(None, {}))  # what the host waited for is over for all
        if leaf.name == "sync.record":
            done = {**mine, leaf.stream: self.last.get(leaf.stream, -1)}
            self.events.update((t.name, done) for t in leaf.outputs)
        elif leaf.name in ("sync.wait", "sync.event"):
            to = mine if leaf.name == "sync.wait" else self.known.setdefault(None, {})
            for event in leaf.inputs:
                _join(to, self.events.get(event.name, {}))
        self.last[leaf.stream] = here
        self.stream_of[here] = leaf.stream
        host = self.known.setdefault(None, {})
        if leaf.name == "sync.device":
            _join(host, self.last)
        elif leaf.name == "sync.stream" or _awaited(leaf):
            _join(host, {**mine, leaf.stream: here})

    def follows(self, leaf: Op, before: int) -> bool:
        return self.known[leaf.stream].get(self.stream_of[before], -1) >= before


def _names(op: Op) -> list[Hashable]:
    """Return by what an op is known in another graph: what it makes, else what it takes."""
    made: list[Hashable] = [tensor.name for tensor in op.outputs]
    return made or [("taken", tensor.name) for tensor in op.inputs]


def _join(known: dict[str, int], other: dict[str, int]) -> None:
    for stream, position in other.items():
        known[stream] = max(known.get(stream, -1), position)


def _awaited(leaf: Op) -> bool:
    """Return whether the host waits for a leaf: it reads a value, or is given a copy at once."""
    if leaf.name in HOST_READS:
        return True
    given = any(t.device == "cpu" for t in leaf.outputs)
    return (
        given
        and any(t.device != "cpu" for t in leaf.inputs)
        and leaf.attributes.get("non_blocking") is not True
    )


def explain(tie: Dependence, leaves: Sequence[Op]) -> tuple[str, list[tuple[Op, str]]]:
    """Return what to say of a dependence without order, and the two ops with their parts in it."""
    before, after = leaves[tie.before], leaves[tie.after]
    first, then = (stream or "default" for stream in (before.stream, after.stream))
    assert tie.tensor is not None
    reason = f"no event orders {before.name} on stream {first} before {after.name} on {then}"
    verbs = {"raw": ("writes", "reads"), "war": ("reads", "writes"), "waw": ("writes", "writes")}
    name = f"%{tie.tensor.name} (${tie.tensor.buffer})"
    does, did = verbs[tie.kind][1], verbs[tie.kind][0]
    return reason, [
        (before, f"{before.name} {did} ${tie.tensor.buffer}"),
        (after, f"{after.name} {does} {name}"),
    ]
