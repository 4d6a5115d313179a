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
        kind: as above; blocks are ``split`` along an axis, in the order of the ranks.
        axis: of what is split.
    """

    kind: Literal["same", "part", "split"]
    axis: int = -1


SAME, PART = LayerPlacement("same"), LayerPlacement("part")


def split(axis: int) -> LayerPlacement:
    """Return the place of what is split along an axis."""
    return LayerPlacement("split", axis)


class Choice(Struct, frozen=True):
    """How an op runs on a rank.

    Attributes:
        wants: what its operands have to be, by name; those not named are the same.
        makes: what its results are, in order; empty where all are the same.
        given: arguments that have other values on a rank.
    """

    wants: Mapping[str, LayerPlacement] = {}
    makes: tuple[LayerPlacement, ...] = ()
    given: Mapping[str, Value] = {}


WHOLE = Choice()
"""All ranks do the same to whole tensors: legal for every op."""


class LayerCall(Struct, frozen=True):
    """An op of the whole step, and what a rank has of its operands.

    Attributes:
        known: places by name.
        ranks: how many share the step.
    """

    op: Op
    known: Mapping[str, LayerPlacement]
    ranks: int
    sizes: Algebra

    def place(self, tensor: Tensor) -> LayerPlacement:
        """Return what a rank has of an operand."""
        return self.known[tensor.name]

    def axis(self, tensor: Tensor) -> int | None:
        """Return the axis along which an operand is split, ``None`` where it is not."""
        place = self.place(tensor)
        return place.axis if place.kind == "split" else None

    def divides(self, size: int) -> bool:
        """Return whether ranks can share an axis of this size, whatever dimensions are."""
        return type(size) is int and size % self.ranks == 0

    def option(self, name: str, place: int, default: Value = None) -> Value:
        """Return an argument by its name, or by its place among the operands."""
        operands = self.op.operands
        return self.op.attributes.get(name, operands[place] if place < len(operands) else default)

    def dims(self, name: str, place: int, rank: int) -> Sequence[int]:
        """Return the axes that an argument names, from 0; empty where it names none."""
        value = self.option(name, place)
        found = value if isinstance(value, tuple) else (value,)
        return [d % rank for d in found if isinstance(d, int) and not isinstance(d, bool)]
