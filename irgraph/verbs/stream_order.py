"""Whether ops on different streams that depend on each other run in order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from irgraph.ir.dependence import Dependence, dependences
from irgraph.ir.graph import Graph
from irgraph.ir.leaving import READS
from irgraph.ir.op import Op
from irgraph.verbs.launch_order import declared
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.streams import works

CONFLICTS = ("raw", "war", "waw")


@dataclass(frozen=True)
class Ordered:
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
        ties: dict[int, list[Dependence]] = {}
        for tie in self.ties:
            if id(self.leaves[tie.before]) not in gone:
                ties.setdefault(tie.after, []).append(tie)
        seen, found = _Seen(), []
        for here, leaf in enumerate(self.leaves if ties else ()):
            if id(leaf) not in gone:
                seen.add(here, leaf)
                found += [tie for tie in ties.get(here, ()) if not seen.behind(leaf, tie.before)]
        return found

    def check(self, gone: Collection[int]) -> None:
        """Refuse to take these ops (by id) out where that leaves a dependence without order."""
        lost = [tie for tie in self.loose(gone) if tie not in self.open]
        if lost:
            raise RefusedError(*explain(lost[0], self.leaves), of_order=True)


@dataclass
class _Seen:
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

    def behind(self, leaf: Op, before: int) -> bool:
        return self.known[leaf.stream].get(self.stream_of[before], -1) >= before


def _join(known: dict[str, int], other: dict[str, int]) -> None:
    for stream, position in other.items():
        known[stream] = max(known.get(stream, -1), position)


def _awaited(leaf: Op) -> bool:
    """Return whether the host waits for a leaf: it reads a value, or is given a copy at once."""
    if leaf.name in READS:
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
