"""A call on one rank if a letter is split over ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import zip_longest

from msgspec.structs import replace

from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.meaning import Meaning, letters_of

Size = Callable[[int], int]


def unchanged(size: int) -> int:
    """Return a number itself."""
    return size


def local_call(
    op: Op, meaning: Meaning | None, letter: str, share: Size, whole: Size = unchanged
) -> Op:
    """Return a call with the numbers of a rank.

    Args:
        op: the call of the whole step.
        meaning: its meaning.
        letter: the letter that is split, ``""`` for none.
        share: returns a rank's part of a size along the letter.
        whole: returns every other number.
    """
    arguments = meaning.arguments if meaning is not None and letter else {}
    along = {key for key, axis in arguments.items() if letter in letters_of(axis)}

    def number(name: str | None, index: int, value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(number(name, i, item) for i, item in enumerate(value))
        if not isinstance(value, int) or isinstance(value, (bool, Tensor)):
            return value
        return share(value) if (name, index) in along else whole(value)

    names = list(Call(op).arguments)[: len(op.operands)]
    operands = tuple(number(name, -1, v) for v, name in zip_longest(op.operands, names))
    attributes = {name: number(name, -1, value) for name, value in op.attributes.items()}
    return replace(op, operands=operands, attributes=attributes)


def letters_of_arguments(meaning: Meaning) -> Collection[str]:
    """Return the letters along which a split changes arguments."""
    return {letter for axis in meaning.arguments.values() for letter in letters_of(axis)}
