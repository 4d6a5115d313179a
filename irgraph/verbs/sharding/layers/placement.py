"""What one rank has of a tensor of the whole step, where ranks share layers and no samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from irgraph.axes.algebra import Algebra
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor


class LayerPlacement(Struct, frozen=True):
    """The ``same`` tensor on all ranks, its ``part`` of a sum, or one of equal blocks.

    Attributes:
        kind: as above; blocks are ``split_along`` along an axis, in the order of the ranks.
        axis: of what is split.
    """

    kind: Literal["same", "part", "split"]
    axis: int = -1


SAME, PART = LayerPlacement("same"), LayerPlacement("part")


def split_along(axis: int) -> LayerPlacement:
    """Return the place of what is split along an axis."""
    return LayerPlacement("split", axis)


class CallPlacement(Struct, frozen=True):
    """How an op runs on a rank.

    Attributes:
        wants: what its operands have to be, by name; those not named are the same.
        makes: what its results are, in order; empty where all are the same.
        given: arguments that have other values on a rank.
    """

    operands: Mapping[str, LayerPlacement] = {}
    results: tuple[LayerPlacement, ...] = ()
    arguments: Mapping[str, Value] = {}


WHOLE = CallPlacement()
"""All ranks do the same to whole tensors: legal for every op."""


class LayerCall(Struct, frozen=True):
    """An op of the whole step, and what a rank has of its operands.

    Attributes:
        known: places by name.
        ranks: how many share the step.
    """

    op: Op
    placements: Mapping[str, LayerPlacement]
    ranks: int
    sizes: Algebra

    def placement_of(self, tensor: Tensor) -> LayerPlacement:
        """Return what a rank has of an operand."""
        return self.placements[tensor.name]

    def axis(self, tensor: Tensor) -> int | None:
        """Return the axis along which an operand is split, ``None`` where it is not."""
        placement = self.placement_of(tensor)
        return placement.axis if placement.kind == "split" else None

    def divides(self, size: int) -> bool:
        """Return whether ranks can share an axis of this size, whatever dimensions are."""
        return type(size) is int and size % self.ranks == 0

    def option(self, name: str, position: int, default: Value = None) -> Value:
        """Return an argument by its name, or by its place among the operands."""
        operands = self.op.operands
        return self.op.attributes.get(
            name, operands[position] if position < len(operands) else default
        )

    def dims(self, name: str, position: int, rank: int) -> Sequence[int]:
        """Return the axes that an argument names, from 0; empty where it names none."""
        value = self.option(name, position)
        axes = value if isinstance(value, tuple) else (value,)
        return [d % rank for d in axes if isinstance(d, int) and not isinstance(d, bool)]
