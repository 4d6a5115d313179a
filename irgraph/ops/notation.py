"""Declarations as text: ``n o c, m k! -> n (o c)``.

Tensors are separated by commas, axes by blanks. ``1`` is an axis that repeats, ``_`` one of unknown
size, ``(a b)`` merges axes, ``a+b`` joins pieces, ``*x`` stands for any number of axes, and ``()``
for the axes of a number. A letter with ``!`` is mixed: its elements depend on each other.
"""

from __future__ import annotations

import re
from functools import cache

from msgspec import Struct

from irgraph.ops.meaning import Axes, Axis, Joined, Merged

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
    mixed: frozenset[str]


@cache
def parse(text: str) -> Declaration:
    """Return the declaration that a text states. Raises ``ValueError`` if it has no arrow."""
    before, arrow, after = text.partition("->")
    if not arrow:
        raise ValueError(f"{text!r} has no '->'")
    mixed = frozenset(word.rstrip("!") for word in WORD.findall(text) if word.endswith("!"))
    return Declaration(_tensors(before), _tensors(after), mixed)


def _tensors(text: str) -> tuple[Axes, ...]:
    parts = text.split(",") if text.strip() else []
    return tuple(tuple(map(_axis, _words(part))) for part in parts)


def _words(text: str) -> list[str]:
    return [word.rstrip("!") for word in WORD.findall(text) if word != "()"]


def _axis(word: str) -> Axis:
    if word.startswith("("):
        return Merged(tuple(word.strip("()").split()))
    return Joined(tuple(word.split("+"))) if "+" in word else word


def is_repeated(axis: Axis) -> bool:
    """Return whether an axis of a text stands for any number of axes."""
    return isinstance(axis, str) and axis.startswith("*")


def expand(axes: Axes, rank: int, counts: dict[str, int]) -> Axes | None:
    """Return the axes of a tensor of a rank; ``None`` if it cannot have these axes.

    ``counts`` has the number of axes for each ``*x`` that is known, and receives new ones.
    """
    repeated = [axis for axis in axes if is_repeated(axis)]
    if len(repeated) > 1:
        return None
    expanded: list[Axis] = []
    for axis in axes:
        if not is_repeated(axis):
            expanded.append(axis)
            continue
        count = counts.setdefault(str(axis), rank - len(axes) + 1)
        expanded += [f"{str(axis)[1:]}{i}" for i in range(count)]
    return tuple(expanded) if len(expanded) == rank else None
