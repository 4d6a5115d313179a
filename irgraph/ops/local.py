"""A call on one rank if a letter is split over ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import zip_longest

from msgspec.structs import replace

from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.meaning import Meaning, letters_in, letters_of

Size = Callable[[int], int]


def unchanged(size: int) -> int:
    """Return a number itself."""
    return size


def local_call(
    op: Op,
    meaning: Meaning | None,
    letter: str,
    share: Size,
    full: Size = unchanged,
) -> Op:
    """Return a call with the numbers of a rank.

    Args:
        op: the call of the whole step.
        meaning: its meaning.
        letter: the letter that is split, ``""`` for none.
        share: returns a rank's part of a size along the letter.
        full: returns every other number.
    """
    arguments = meaning.arguments if meaning is not None and letter else {}
    along = {key for key, axis in arguments.items() if letter in letters_of(axis)}

    def local(
        name: str | None,
        value: Value,
        index: int = -1,
    ) -> Value:
        if isinstance(value, tuple):
            items = enumerate(value)
            return tuple(local(name, item, i) for i, item in items)
        if not isinstance(value, int) or isinstance(value, (bool, Tensor)):
            return value
        if (name, index) in along:
            return share(value)
        return full(value)

    names = list(Call(op).arguments)
    pairs = zip_longest(names[: len(op.operands)], op.operands)
    operands = tuple(local(name, value) for name, value in pairs)
    attributes: dict[str, Value] = {}
    for name, value in op.attributes.items():
        attributes[name] = local(name, value)
    return replace(op, operands=operands, attributes=attributes)


def letters_of_arguments(meaning: Meaning) -> Collection[str]:
    """Return the letters along which a split changes arguments."""
    stated = tuple(meaning.arguments.values())
    return set(letters_in(stated))
