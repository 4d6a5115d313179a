"""The size constraints of one op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias, Union

from msgspec import Struct

from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor

AxisOf: TypeAlias = tuple[str, int]
"""An axis of a tensor: the tensor's name, and which axis."""

Argument: TypeAlias = tuple[int, str, int]
"""A size among an op's arguments: the op's number, the argument, its place in a list or -1."""

Spot: TypeAlias = Union[AxisOf, Argument]
"""Something that has a size."""


class Sum(Struct, frozen=True):
    """One size is the sum of others, and perhaps of a constant rest.

    Where it is ``loose``, parts are missing: the whole may grow by more than they do.
    """

    whole: Spot
    parts: tuple[Spot, ...]
    loose: bool = False


class Product(Struct, frozen=True):
    """Two products of sizes are equal: axes that are split or merged."""

    before: tuple[Spot, ...]
    after: tuple[Spot, ...]


class Slope(Struct, frozen=True):
    """One size grows by a fraction of the growth of another."""

    cause: Spot
    effect: Spot
    share: Fraction


class Multiple(Struct, frozen=True):
    """One size is a multiple of another and follows it, but not the reverse."""

    cause: Spot
    effect: Spot
    multiple: int


@dataclass(slots=True)
class Relation:
    """All size constraints of one op; sizes that it does not name are fixed.

    Attributes:
        equal: groups of one size.
        sums, products, slopes, follows: as their classes say.
        free: sizes that depend on nothing else.
        steps: sizes that must grow by multiples of a number.
        asked: whether torch must be asked for spots that are not named yet.
    """

    equal: list[tuple[Spot, ...]] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    slopes: list[Slope] = field(default_factory=list)
    follows: list[Multiple] = field(default_factory=list)
    free: set[Spot] = field(default_factory=set)
    steps: list[tuple[Spot, int]] = field(default_factory=list)
    asked: bool = False

    def named(self) -> set[Spot]:
        """Return every spot that may change."""
        found = set(self.free)
        for group in self.equal:
            found.update(group)
        for total in self.sums:
            found.update((total.whole, *total.parts))
        for product in self.products:
            found.update((*product.before, *product.after))
        for slope in self.slopes:
            found.update((slope.cause, slope.effect))
        for follow in self.follows:
            found.update((follow.cause, follow.effect))
        return found


class ConstrainedOp:
    """An op with size constraints, its tensors listed once."""

    __slots__ = ("inputs", "number", "op", "outputs")

    def __init__(self, op: Op, number: int) -> None:
        self.op = op
        self.number = number
        self.inputs = op.inputs
        self.outputs = op.outputs

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every operand and result."""
        return self.inputs + self.outputs

    def argument(self, name: str, place: int = -1) -> Argument:
        """Return the spot of an argument, or of one item of a list."""
        return self.number, name, place

    def attribute(self, name: str, default: Value = None) -> Value:
        """Return an argument's value."""
        return self.op.attributes.get(name, default)

    def number_of(self, name: str, default: int) -> int:
        """Return an argument that is a plain number."""
        value = self.op.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def sizes(self, name: str) -> tuple[int, ...]:
        """Return an argument that is a list of sizes."""
        value = self.op.attributes.get(name)
        return value if isinstance(value, tuple) else ()  # type: ignore[return-value]


def axis(tensor: Tensor, place: int) -> AxisOf:
    """Return an axis of a tensor, counted from the end if negative."""
    return tensor.name, place % tensor.rank if tensor.rank else 0


def axes(tensor: Tensor) -> list[AxisOf]:
    """Return all axes of a tensor."""
    return [(tensor.name, i) for i in range(tensor.rank)]


def paired(*sides: Iterable[Spot]) -> list[tuple[Spot, ...]]:
    """Return the first of each side as one group, then the second, and so on."""
    return [tuple(group) for group in zip(*sides, strict=False)]


def aligned_at(place: int, tensors: Sequence[Tensor]) -> list[tuple[Spot, ...]]:
    """Return one axis of some tensors as a group, where all are of one size."""
    if len({t.shape[place] for t in tensors}) != 1:
        return []
    return [tuple(axis(t, place) for t in tensors)]


def aligned(tensors: Sequence[Tensor]) -> list[tuple[Spot, ...]]:
    """Return groups of axes that broadcasting aligns."""
    rank = max((t.rank for t in tensors), default=0)
    groups: list[tuple[Spot, ...]] = []
    for back in range(1, rank + 1):
        held = [t for t in tensors if t.rank >= back]
        size = max(held, key=lambda t: t.shape[-back]).shape[-back]
        if 0 in (t.shape[-back] for t in held):
            size = 0
        groups.append(tuple(axis(t, -back) for t in held if t.shape[-back] == size))
    return groups
