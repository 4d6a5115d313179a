"""Matches the ops of two graphs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value, tensors_in


class TreePosition(Struct, frozen=True):
    """An op, the position of the op around it (-1 at the top), and one past its last inner op."""

    op: Op
    parent: int
    end: int


@dataclass
class Pairing:
    """Ops of two graphs, outer before inner, and their matches.

    Attributes:
        before, after: all ops of either graph.
        forward: position after, by position before.
        backward: position before, by position after.
    """

    before: Sequence[TreePosition]
    after: Sequence[TreePosition]
    forward: dict[int, int] = field(default_factory=dict)
    backward: dict[int, int] = field(default_factory=dict)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Positions of matched ops, in the order before."""
        return sorted(self.forward.items())

    def join(self, i: int, j: int) -> None:
        """Match two ops."""
        self.forward[i] = j
        self.backward[j] = i


Key = Callable[[Op], Hashable]


def _names(values: Sequence[Value]) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in tensors_in(values))


def _exact(op: Op) -> Hashable:
    return op.name, op.origin, _names(op.results), _names(op.operands), bool(op.body)


def _by_results(op: Op) -> Hashable:
    results = _names(op.results)
    return (op.name, results, bool(op.body)) if results else None


def _by_origin(op: Op) -> Hashable:
    return (op.name, op.origin, len(op.results)) if op.origin else None


def _by_operands(op: Op) -> Hashable:
    operands = _names(op.operands)
    return (op.name, operands, tuple(sorted(op.written)), op.module) if operands else None


def _by_label(op: Op) -> Hashable:
    return (op.name, op.phase) if op.is_annotation else None


KEYS: tuple[Key, ...] = (id, _exact, _by_results, _by_origin, _by_operands, _by_label)
"""Keys by which ops match, the most reliable first."""


def places(graph: Graph) -> list[TreePosition]:
    """Return all ops of a graph, outer before inner, with their positions."""
    found: list[TreePosition] = []
    for op in graph.ops:
        _place(op, -1, found)
    return found


def _place(op: Op, parent: int, found: list[TreePosition]) -> None:
    here = len(found)
    found.append(TreePosition(op, parent, 0))
    for child in op.body:
        _place(child, here, found)
    found[here] = TreePosition(op, parent, len(found))


def pair_ops(before: Graph, after: Graph) -> Pairing:
    """Match the ops of two graphs: by identity, all fields, results, origin, operands.

    Ops with the same key are matched in launch order where both graphs have equally many of them.
    """
    pairing = Pairing(places(before), places(after))
    for key in KEYS:
        left = _by_key(pairing.before, pairing.forward, key)
        right = _by_key(pairing.after, pairing.backward, key)
        for found, mine in left.items():
            its = right.get(found, [])
            for i, j in zip(mine, its, strict=True) if len(mine) == len(its) else ():
                pairing.join(i, j)
    return pairing


def _by_key(
    found: Sequence[TreePosition], taken: dict[int, int], key: Key
) -> dict[Hashable, list[int]]:
    keyed: dict[Hashable, list[int]] = {}
    for i, place in enumerate(found):
        if i not in taken:
            value = key(place.op)
            if value is not None:
                keyed.setdefault(value, []).append(i)
    return keyed


def unmoved(pairing: Pairing) -> set[int]:
    """Return the positions before of matched ops that did not move.

    These are a longest run of pairs in the same order in both graphs. An op inside one that moved
    counts as unmoved, unless it left it.
    """
    pairs = pairing.pairs
    steady = {pairs[k][0] for k in _longest_increasing([j for _, j in pairs])}
    for i, j in pairs:
        old, new = pairing.before[i].parent, pairing.after[j].parent
        if old >= 0 and pairing.forward.get(old, -2) == new:
            steady.add(i)
    return steady


def _longest_increasing(values: Sequence[int]) -> Iterator[int]:
    """Yield the positions of a longest increasing subsequence, last first."""
    tails: list[int] = []
    ends: list[int] = []
    previous: list[int] = []
    for k, value in enumerate(values):
        place = bisect_left(tails, value)
        previous.append(ends[place - 1] if place else -1)
        if place == len(tails):
            tails.append(value)
            ends.append(k)
        else:
            tails[place] = value
            ends[place] = k
    here = ends[-1] if ends else -1
    while here >= 0:
        yield here
        here = previous[here]
