"""Nodes of a step that is being rewritten for a rank."""

from __future__ import annotations

from dataclasses import dataclass, field

from irgraph.ir.op import Op
from irgraph.verbs.sharding.local_tensors import SumBucket


@dataclass
class RankNode:
    """An op of the rank, or several sums, whose place in launch order is fixed.

    Attributes:
        op: the op of the rank; a scope without its body.
        small: the op of the whole step with the rank's dimensions.
        children: the nodes inside a scope.
        bucket: the sums.
    """

    op: Op | None = None
    small: Op | None = None
    children: list[RankNode] = field(default_factory=list)
    bucket: SumBucket | None = None


@dataclass
class Level:
    """An op that is being rewritten: its first leaf, its node and its siblings."""

    op: Op
    position: int
    node: RankNode
    siblings: list[RankNode]
