"""Placements of tensors on ranks that share layers, and run all samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from irgraph.axes.algebra import Algebra
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor


class LayerPlacement(Struct, frozen=True):
    """The ``same`` tensor on all ranks, a rank's ``part`` of a sum, or one of equal blocks.

    Attributes:
        kind: as above; blocks are ``split`` along an axis, in the order of the ranks.
        axis: the axis of a split, else -1.
    """

    kind: Literal["same", "part", "split"]
    axis: int = -1


SAME, PART = LayerPlacement("same"), LayerPlacement("part")


def split_along(axis: int) -> LayerPlacement:
    """Return the placement of a tensor that is split along an axis."""
    return LayerPlacement("split", axis)


class CallPlacement(Struct, frozen=True):
    """Placements of a call's tensors on a rank.

    Attributes:
        operands: required placements of its operands, by name; unnamed operands are the same.
        results: placements of its results, in order; empty if all are the same.
        arguments: arguments that have other values on a rank.
    """

    operands: Mapping[str, LayerPlacement] = {}
    results: tuple[LayerPlacement, ...] = ()
    arguments: Mapping[str, Value] = {}


WHOLE = CallPlacement()
"""All ranks run the same call on full tensors: legal for every op."""


class LayerCall(Struct, frozen=True):
    """An op of the full step, and the placements of its operands on a rank.

    Attributes:
        placements: placements of tensors by name.
        ranks: number of ranks that share the step.
    """

    op: Op
    placements: Mapping[str, LayerPlacement]
    ranks: int
    sizes: Algebra

    def placement_of(self, tensor: Tensor) -> LayerPlacement:
        """Return the placement of an operand."""
        return self.placements[tensor.name]

    def axis(self, tensor: Tensor) -> int | None:
        """Return the axis along which an operand is split, ``None`` if it is not."""
        placement = self.placement_of(tensor)
        return placement.axis if placement.kind == "split" else None

    def divides(self, size: int) -> bool:
        """Return whether ranks can share an axis of this size, for all sizes of dimensions."""
        return type(size) is int and size % self.ranks == 0

    def option(self, name: str, position: int, default: Value = None) -> Value:
        """Return an argument by its name, or by its position among the operands."""
        operands = self.op.operands
        return self.op.attributes.get(
            name, operands[position] if position < len(operands) else default
        )

    def dims(self, name: str, position: int, rank: int) -> Sequence[int]:
        """Return the axes in an argument, as numbers from 0; empty if it has none."""
        value = self.option(name, position)
        axes = value if isinstance(value, tuple) else (value,)
        return [d % rank for d in axes if isinstance(d, int) and not isinstance(d, bool)]
