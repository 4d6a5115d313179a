"""Matching of the ops of two graphs."""

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
        forward: indices of matched ops in ``after``, by index in ``before``.
        backward: indices of matched ops in ``before``, by index in ``after``.
    """

    before: Sequence[TreePosition]
    after: Sequence[TreePosition]
    forward: dict[int, int] = field(default_factory=dict)
    backward: dict[int, int] = field(default_factory=dict)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Indices of matched ops, in the order of ``before``."""
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


def tree_positions(graph: Graph) -> list[TreePosition]:
    """Return all ops of a graph, outer before inner, with their positions."""
    positions: list[TreePosition] = []
    for op in graph.ops:
        _append_positions(op, -1, positions)
    return positions


def _append_positions(op: Op, parent: int, positions: list[TreePosition]) -> None:
    index = len(positions)
    positions.append(TreePosition(op, parent, 0))
    for child in op.body:
        _append_positions(child, index, positions)
    positions[index] = TreePosition(op, parent, len(positions))


def pair_ops(before: Graph, after: Graph) -> Pairing:
    """Match the ops of two graphs: by identity, all fields, results, origin, operands.

    Ops with the same key are matched in launch order if both graphs have the same number of them.
    """
    pairing = Pairing(tree_positions(before), tree_positions(after))
    for key in KEYS:
        indices_before = _by_key(pairing.before, pairing.forward, key)
        indices_after = _by_key(pairing.after, pairing.backward, key)
        for value, first in indices_before.items():
            second = indices_after.get(value, [])
            for i, j in zip(first, second, strict=True) if len(first) == len(second) else ():
                pairing.join(i, j)
    return pairing


def _by_key(
    positions: Sequence[TreePosition], matched: dict[int, int], key: Key
) -> dict[Hashable, list[int]]:
    indices_by_value: dict[Hashable, list[int]] = {}
    for i, position in enumerate(positions):
        if i not in matched:
            value = key(position.op)
            if value is not None:
                indices_by_value.setdefault(value, []).append(i)
    return indices_by_value


def unmoved_indices(pairing: Pairing) -> set[int]:
    """Return the indices in ``before`` of matched ops that did not move.

    These are a longest sequence of pairs with the same order in both graphs. An op inside a moved
    op counts as unmoved if it is still inside.
    """
    pairs = pairing.pairs
    indices = {pairs[k][0] for k in _longest_increasing([j for _, j in pairs])}
    for i, j in pairs:
        old, new = pairing.before[i].parent, pairing.after[j].parent
        if old >= 0 and pairing.forward.get(old, -2) == new:
            indices.add(i)
    return indices


def _longest_increasing(values: Sequence[int]) -> Iterator[int]:
    """Yield the indices of a longest increasing subsequence, last first."""
    tails: list[int] = []
    ends: list[int] = []
    previous: list[int] = []
    for k, value in enumerate(values):
        length = bisect_left(tails, value)
        previous.append(ends[length - 1] if length else -1)
        if length == len(tails):
            tails.append(value)
            ends.append(k)
        else:
            tails[length] = value
            ends[length] = k
    current = ends[-1] if ends else -1
    while current >= 0:
        yield current
        current = previous[current]
