"""Declarations as text: ``n o c, m k! -> n (o c)``.

Tensors are separated by commas, axes by blanks. ``1`` is an axis that repeats, ``_`` one of unknown
size, ``(a b)`` merges axes, ``a+b`` joins pieces, ``*x`` stands for any number of axes, and ``()``
for the axes of a number. A letter with ``!`` is mixed: its elements depend on each other.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TypeGuard

from msgspec import Struct

from irgraph.ops.meaning import Axes, Axis, Joined, Letters, Merged
from irgraph.ops.shapes import letters

WORD = re.compile(r"\([^)]*\)|[^\s,]+")


class Declaration(Struct, frozen=True):
    """A parsed text.

    Attributes:
        operands: the axes of each tensor argument; ``*x`` is one axis here.
        results: the axes of each result.
        mixed: letters with a ``!``.
    """

    operands: tuple[Axes, ...]
    results: tuple[Axes, ...]
    mixed: Letters


@cache
def parse(text: str) -> Declaration:
    """Return the declaration that a text states. Raises ``ValueError`` if it has no arrow."""
    before, arrow, after = text.partition("->")
    if not arrow:
        raise ValueError(f"{text!r} has no '->'")
    marked = [word for word in WORD.findall(text) if word.endswith("!")]
    mixed = frozenset(word.rstrip("!") for word in marked)
    return Declaration(_tensors(before), _tensors(after), mixed)


def _tensors(text: str) -> tuple[Axes, ...]:
    if not text.strip():
        return ()
    return tuple(map(_axes, text.split(",")))


def _axes(text: str) -> Axes:
    words = [word.rstrip("!") for word in WORD.findall(text)]
    return tuple(_axis(word) for word in words if word != "()")


def _axis(word: str) -> Axis:
    if word.startswith("("):
        letters = word.strip("()").split()
        return Merged(tuple(letters))
    if "+" in word:
        pieces = word.split("+")
        return Joined(tuple(pieces))
    return word


def is_repeated(axis: Axis) -> TypeGuard[str]:
    """Return whether an axis of a text stands for any number of axes."""
    return isinstance(axis, str) and axis.startswith("*")


def expand(
    axes: Axes,
    rank: int,
    counts: dict[str, int],
) -> Axes | None:
    """Return the axes of a tensor of a rank; ``None`` if it cannot have these axes.

    ``counts`` has the number of axes for each ``*x`` that is known, and receives new ones.
    """
    if sum(map(is_repeated, axes)) > 1:
        return None
    expanded: list[Axis] = []
    for axis in axes:
        if is_repeated(axis):
            count = counts.setdefault(axis, rank - len(axes) + 1)
            expanded += letters(count, axis[1:])
        else:
            expanded.append(axis)
    return tuple(expanded) if len(expanded) == rank else None
