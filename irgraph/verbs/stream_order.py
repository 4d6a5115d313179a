"""Order of dependent ops on different streams."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from msgspec import Struct

from irgraph.ir.dependence import Dependence, dependences
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ops.live_out import reads_on_host
from irgraph.verbs.launch_order import declared
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.streams import works

CONFLICTS = ("raw", "war", "waw")


class StreamOrder(Struct, frozen=True, dict=True):
    """A graph's leaves, and their dependences across streams."""

    graph: Graph

    @cached_property
    def leaves(self) -> Sequence[Op]:
        """The leaves in launch order."""
        return list(self.graph.leaves())

    @cached_property
    def ties(self) -> Sequence[Dependence]:
        """Dependences between leaves with device work on different streams."""
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
    def unordered(self) -> frozenset[Dependence]:
        """Dependences that no event orders in the current graph."""
        return frozenset(self.unordered_without())

    def unordered_without(self, removed_ops: Collection[Op] = ()) -> list[Dependence]:
        """Return the dependences that would not be ordered without the ops of these ids."""
        present = [tie for tie in self.ties if self.leaves[tie.before] not in removed_ops]
        unordered_pairs = self._unordered_pairs(
            {(tie.before, tie.after) for tie in present}, removed_ops
        )
        return [tie for tie in present if (tie.before, tie.after) in unordered_pairs]

    def _unordered_pairs(
        self, pairs: Collection[tuple[int, int]], removed_ops: Collection[Op] = ()
    ) -> set[tuple[int, int]]:
        """Return the pairs of leaves, by position, whose first is not ordered before the second."""
        firsts_by_later: dict[int, list[int]] = {}
        for first, later in pairs:
            firsts_by_later.setdefault(later, []).append(first)
        completed, unordered_pairs = _Completed(), set()
        for position, leaf in enumerate(self.leaves if firsts_by_later else ()):
            if leaf not in removed_ops:
                completed.add(position, leaf)
                unordered_pairs |= {
                    (i, position)
                    for i in firsts_by_later.get(position, ())
                    if self.leaves[i].stream != leaf.stream and not completed.follows(leaf, i)
                }
        return unordered_pairs

    def newly_unordered(self, old: StreamOrder) -> list[Dependence]:
        """Return the unordered dependences whose ops were ordered in an older graph, or are new.

        Ops of the two graphs correspond if they make, or else use, the same names.
        """
        if not self.unordered or not old.unordered:
            return sorted(self.unordered, key=lambda tie: tie.after)
        positions_by_name: dict[Hashable, list[int]] = {}
        for i, leaf in enumerate(old.leaves):
            for name in _names(leaf):
                positions_by_name.setdefault(name, []).append(i)
        pairs = {tie: self._pairs(tie, positions_by_name) for tie in self.unordered}
        unordered_pairs = old._unordered_pairs(
            {pair for pair_set in pairs.values() for pair in pair_set}
        )
        ordered_pairs = {(tie.before, tie.after) for tie in old.ties}
        result = [
            tie
            for tie, pair_set in pairs.items()
            if not pair_set or not (pair_set & ordered_pairs or pair_set) <= unordered_pairs
        ]
        return sorted(result, key=lambda tie: tie.after)

    def _pairs(
        self, tie: Dependence, positions_by_name: Mapping[Hashable, Sequence[int]]
    ) -> set[tuple[int, int]]:
        """Return the positions of the two ops of a dependence in an older graph."""
        first, later = (
            {i for leaf in leaves for name in _names(leaf) for i in positions_by_name.get(name, ())}
            for leaves in (
                [self.leaves[tie.before]],
                self._counterparts(tie.after, positions_by_name),
            )
        )
        return {(i, j) for i in first for j in later if i < j}

    def _counterparts(
        self, position: int, positions_by_name: Mapping[Hashable, Sequence[int]]
    ) -> list[Op]:
        """Return a leaf that an older graph has too, or else the next such users of its results."""
        leaf = self.leaves[position]
        if any(name in positions_by_name for name in _names(leaf)):
            return [leaf]
        new_names, ops = {tensor.name for tensor in leaf.outputs}, []
        for follower in self.leaves[position + 1 :]:
            if follower.stream != leaf.stream or not new_names & {t.name for t in follower.inputs}:
                continue
            if any(name in positions_by_name for name in _names(follower)):
                ops.append(follower)
            else:
                new_names |= {tensor.name for tensor in follower.outputs}
        return ops

    def check(self, removed_ops: Collection[Op]) -> None:
        """Refuse to remove these ops (by id) if that leaves a dependence without order."""
        result = [tie for tie in self.unordered_without(removed_ops) if tie not in self.unordered]
        if result:
            raise RefusedError(*explain(result[0], self.leaves), of_order=True)


@dataclass
class _Completed:
    """Work that is certain to have ended at the start of the next op of a stream.

    For each stream, and for the host under the name ``None``, ``progress`` is the position up to
    which the work of every other stream has ended.
    """

    last: dict[str, int] = field(default_factory=dict)
    progress: dict[str | None, dict[str, int]] = field(default_factory=dict)
    events: dict[str, dict[str, int]] = field(default_factory=dict)
    stream_of: dict[int, str] = field(default_factory=dict)

    def add(self, position: int, leaf: Op) -> None:
        own_progress = self.progress.setdefault(leaf.stream, {})
        _merge_progress(
            own_progress, self.progress.get(None, {})
        )  # work that the host waited for has ended for all streams
        if leaf.name == "sync.record":
            event_progress = {**own_progress, leaf.stream: self.last.get(leaf.stream, -1)}
            self.events.update((t.name, event_progress) for t in leaf.outputs)
        elif leaf.name in ("sync.wait", "sync.event"):
            target = (
                own_progress if leaf.name == "sync.wait" else self.progress.setdefault(None, {})
            )
            for event in leaf.inputs:
                _merge_progress(target, self.events.get(event.name, {}))
        self.last[leaf.stream] = position
        self.stream_of[position] = leaf.stream
        host = self.progress.setdefault(None, {})
        if leaf.name == "sync.device":
            _merge_progress(host, self.last)
        elif leaf.name == "sync.stream" or _is_awaited(leaf):
            _merge_progress(host, {**own_progress, leaf.stream: position})

    def follows(self, leaf: Op, before: int) -> bool:
        return self.progress[leaf.stream].get(self.stream_of[before], -1) >= before


def _names(op: Op) -> list[Hashable]:
    """Return the names that identify an op in another graph: its results, or else its operands."""
    names: list[Hashable] = [tensor.name for tensor in op.outputs]
    return names or [("taken", tensor.name) for tensor in op.inputs]


def _merge_progress(target: dict[str, int], source: dict[str, int]) -> None:
    for stream, position in source.items():
        target[stream] = max(target.get(stream, -1), position)


def _is_awaited(leaf: Op) -> bool:
    """Return whether the host waits for a leaf: it reads a value, or a copy that blocks."""
    if reads_on_host(leaf):
        return True
    is_host_result = any(t.device == "cpu" for t in leaf.outputs)
    return (
        is_host_result
        and any(t.device != "cpu" for t in leaf.inputs)
        and leaf.attributes.get("non_blocking") is not True
    )


def explain(tie: Dependence, leaves: Sequence[Op]) -> tuple[str, list[tuple[Op, str]]]:
    """Return the message about an unordered dependence, and its two ops with their accesses."""
    before, after = leaves[tie.before], leaves[tie.after]
    first, second = (stream or "default" for stream in (before.stream, after.stream))
    assert tie.tensor is not None
    reason = f"no event orders {before.name} on stream {first} before {after.name} on {second}"
    verbs = {"raw": ("writes", "reads"), "war": ("reads", "writes"), "waw": ("writes", "writes")}
    name = f"%{tie.tensor.name} (${tie.tensor.buffer})"
    verb_after, verb_before = verbs[tie.kind][1], verbs[tie.kind][0]
    return reason, [
        (before, f"{before.name} {verb_before} ${tie.tensor.buffer}"),
        (after, f"{after.name} {verb_after} {name}"),
    ]
