"""The meaning of a call: how the axes of its operands and results belong together.

Axes are named by letters, as in einsum. ``mm`` is ``m k, k n -> m n``: an axis ``k`` that is
missing from the result is summed. A letter has one size wherever it occurs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import chain
from typing import TypeAlias, Union

from msgspec import Struct

from irgraph.ir.tensor import Shape


class Merged(Struct, frozen=True):
    """An axis that merges several, the slowest first: ``(a b)``."""

    letters: tuple[str, ...]

    def __str__(self) -> str:
        """Return the axis as declarations write it."""
        return f"({' '.join(self.letters)})"


class Joined(Struct, frozen=True):
    """An axis made of pieces, one behind the other: ``a+b``."""

    letters: tuple[str, ...]

    def __str__(self) -> str:
        """Return the axis as declarations write it."""
        return "+".join(self.letters)


ONE = "1"
"""An axis of one element that repeats along the axis of other tensors in its position."""

OPAQUE = "_"
"""An axis whose size nothing in the declaration determines."""

Axis: TypeAlias = Union[str, Merged, Joined]
"""A letter, ``ONE``, ``OPAQUE``, or several letters in one axis."""

Axes: TypeAlias = tuple[Axis, ...]
"""The axes of one tensor."""

Letters: TypeAlias = frozenset[str]

ArgumentKey: TypeAlias = tuple[str, int]
"""A size among the arguments: the argument's name, and the index in a list or -1."""

Arguments: TypeAlias = dict[ArgumentKey, Axis]
"""Axes that arguments have as sizes."""

Multiple: TypeAlias = tuple[str, str, int]
"""Two letters, and the multiple of the first that the second is."""

LinearSets: TypeAlias = tuple[frozenset[int], ...]
"""Sets of operands in which, taken together, results are linear."""

IN_FIRST: LinearSets = (frozenset({0}),)
"""Results that are linear in the first operand."""


AxisGroup: TypeAlias = tuple[Shape, Shape]
"""Indices of axes before and after a reshape, with equal products of sizes."""


class Slope(Struct, frozen=True):
    """The size of ``effect`` grows by ``share`` of the growth of ``cause``."""

    cause: str
    effect: str
    share: Fraction


def growing_together(first: str, second: str) -> tuple[Slope, Slope]:
    """Return that two letters grow by the same size."""
    share = Fraction(1)
    return Slope(first, second, share), Slope(second, first, share)


class Piece(Struct, frozen=True):
    """A part of one axis of a view's operand.

    Attributes:
        axis: the index of the axis.
        start: the index of the first element, counted from the end if negative.
        step: the distance between elements.
    """

    axis: int
    start: int
    step: int = 1


class Result(Struct, frozen=True):
    """The axes of a result, and the operands that it is a function of.

    Attributes:
        axes: its axes.
        reads: indices of operands; ``None`` for all of them.
        piece: the part of the operand that a view shows, ``None`` for all of it.
        is_workspace: whether only the gradient of the same call reads its elements.
    """

    axes: Axes
    reads: frozenset[int] | None = None
    piece: Piece | None = None
    is_workspace: bool = False

    def is_function_of(self, operand: int) -> bool:
        """Return whether the result depends on the elements of an operand."""
        return self.reads is None or operand in self.reads


class Meaning(Struct, frozen=True):
    """The meaning of a call.

    Attributes:
        operands: the axes of each tensor among operands and attributes, in order.
        results: each new tensor, then the operands that the call writes, as they are afterwards.
        mixed: letters along which elements depend on each other other than by a sum.
        linear: sets of operands in which, taken together, all results that read them are linear.
        summed: letters over which results are sums, although they are not linear in an operand.
        means: letters by whose size the results are divided.
        power: if above 0, results are norms of this power over letters that they lack, of one
            operand; ``inf`` for the largest absolute value.
        rearranges: whether each element of a result is an element of an operand.
        arguments: sizes among the arguments, as axes.
        slopes: letters of windows, whose sizes grow together at a rate.
        multiples: pairs of letters; the second is this multiple of the first and follows it.
        groups: indices of axes of the operand and of the result of a reshape whose products of
            sizes are equal.
        steps: letters that grow by multiples of a number.
        fixed: letters whose size cannot change.
        sizes: sizes of letters that follow from arguments and other letters, as in this call.
        bounded: letters on whose sizes those depend, or whether arguments such as an index are
            valid.
        random: whether elements are drawn.
        workspaces: indices of operands that the forward call left for this one.
        sizes_by_torch: whether torch must be queried which sizes change together, since arguments
            that are not named here depend on them.
    """

    operands: tuple[Axes, ...]
    results: tuple[Result, ...]
    mixed: Letters = frozenset()
    linear: LinearSets = ()
    summed: Letters = frozenset()
    means: Letters = frozenset()
    power: float = 0.0
    rearranges: bool = False
    arguments: Mapping[ArgumentKey, Axis] = {}
    slopes: tuple[Slope, ...] = ()
    multiples: tuple[Multiple, ...] = ()
    groups: tuple[AxisGroup, ...] = ()
    steps: tuple[tuple[str, int], ...] = ()
    fixed: Letters = frozenset()
    sizes: Mapping[str, int] = {}
    bounded: Letters = frozenset()
    random: bool = False
    workspaces: frozenset[int] = frozenset()
    sizes_by_torch: bool = False

    def __str__(self) -> str:
        """Return the meaning as declarations write it."""
        operands = [axes_text(axes, self.mixed) for axes in self.operands]
        results = [axes_text(result.axes, self.mixed) for result in self.results]
        return f"{', '.join(operands)} -> {', '.join(results)}"

    def letters(self) -> Iterator[str]:
        """Yield each letter once, in the order of operands and results."""
        axes_of_results = [result.axes for result in self.results]
        letters = letters_in(*self.operands, *axes_of_results)
        yield from dict.fromkeys(letters)


def letters_of(axis: Axis) -> tuple[str, ...]:
    """Return the letters of an axis; none for ``ONE`` and ``OPAQUE``."""
    if isinstance(axis, str):
        return () if axis in (ONE, OPAQUE) else (axis,)
    return axis.letters


def letters_in(*tensors: Axes) -> Iterator[str]:
    """Yield the letters of the axes of tensors, as often as they occur."""
    for axis in chain(*tensors):
        yield from letters_of(axis)


def axis_names(axes: Iterable[Axis]) -> Letters:
    """Return the axes of a tensor, each a letter, as a set."""
    return frozenset(map(str, axes))


def axes_text(axes: Axes, mixed: Letters = frozenset()) -> str:
    """Return the axes of a tensor as declarations write them; ``()`` for a number."""
    words = [f"{axis}!" if axis in mixed else str(axis) for axis in axes]
    return " ".join(words) or "()"
