"""The size constraints of one op."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias, Union

from msgspec import Struct

from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor

AxisOf: TypeAlias = tuple[str, int]
"""An axis of a tensor: the tensor's name, and which axis."""

Argument: TypeAlias = tuple[int, str, int]
"""A size among an op's arguments: the op's number, the argument, its index in a list or -1."""

SizeKey: TypeAlias = Union[AxisOf, Argument]
"""Key of a size: an axis of a tensor, or an argument of an op."""


class Sum(Struct, frozen=True):
    """One size, ``total``, is the sum of others, and perhaps of a constant rest.

    If it is ``loose``, parts are missing: the total may grow by more than they do.
    """

    total: SizeKey
    parts: tuple[SizeKey, ...]
    loose: bool = False


class Product(Struct, frozen=True):
    """Two products of sizes are equal: axes that are split or merged."""

    before: tuple[SizeKey, ...]
    after: tuple[SizeKey, ...]


class Slope(Struct, frozen=True):
    """One size grows by a fraction of the growth of another."""

    cause: SizeKey
    effect: SizeKey
    share: Fraction


class Multiple(Struct, frozen=True):
    """One size is a multiple of another and follows it, but not the reverse."""

    cause: SizeKey
    effect: SizeKey
    multiple: int


@dataclass(slots=True)
class Relation:
    """All size constraints of one op; sizes that it does not name are fixed.

    Attributes:
        equal: groups of one size.
        sums, products, slopes, follows: as documented in their classes.
        free: sizes that depend on nothing else.
        steps: sizes that must grow by multiples of a number.
        needs_probe: whether torch must be queried about sizes that are not named yet.
    """

    equal: list[tuple[SizeKey, ...]] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    slopes: list[Slope] = field(default_factory=list)
    follows: list[Multiple] = field(default_factory=list)
    free: set[SizeKey] = field(default_factory=set)
    steps: list[tuple[SizeKey, int]] = field(default_factory=list)
    needs_probe: bool = False

    def size_keys(self) -> set[SizeKey]:
        """Return every size that may change."""
        keys = set(self.free)
        for group in self.equal:
            keys.update(group)
        for constraint in self.sums:
            keys.update((constraint.total, *constraint.parts))
        for product in self.products:
            keys.update((*product.before, *product.after))
        for slope in self.slopes:
            keys.update((slope.cause, slope.effect))
        for follow in self.follows:
            keys.update((follow.cause, follow.effect))
        return keys


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

    def argument(self, name: str, index: int = -1) -> Argument:
        """Return the key of an argument, or of one item of a list."""
        return self.number, name, index

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


def axis(tensor: Tensor, index: int) -> AxisOf:
    """Return an axis of a tensor, counted from the end if negative."""
    return tensor.name, index % tensor.rank if tensor.rank else 0


def axes(tensor: Tensor) -> list[AxisOf]:
    """Return all axes of a tensor."""
    return [(tensor.name, i) for i in range(tensor.rank)]


def axis_pairs(*sides: Iterable[SizeKey]) -> list[tuple[SizeKey, ...]]:
    """Return the first key of each side as one group, then the second, and so on."""
    return [tuple(group) for group in zip(*sides, strict=False)]
