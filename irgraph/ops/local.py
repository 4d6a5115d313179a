"""A call on one rank, if a letter is split over ranks."""

from __future__ import annotations

from collections.abc import Mapping

from irgraph.ir.op import Op, Value
from irgraph.ops.meaning import Axis, Meaning, Merged


def local_attributes(op: Op, meaning: Meaning, letter: str, ranks: int) -> Mapping[str, Value]:
    """Return the arguments of a call whose letter is split: sizes along it are a rank's share."""
    attributes = dict(op.attributes)
    for (name, index), axis in meaning.arguments.items():
        if name not in attributes or not _is_shared(axis, letter):
            continue
        value = attributes[name]
        if index < 0:
            attributes[name] = _share(value, ranks)
        elif isinstance(value, tuple):
            items = list(value)
            items[index] = _share(items[index], ranks)
            attributes[name] = tuple(items)
    return attributes


def _is_shared(axis: Axis, letter: str) -> bool:
    if isinstance(axis, Merged):
        return axis.letters[0] == letter
    return axis == letter


def _share(value: Value, ranks: int) -> Value:
    assert isinstance(value, int)
    return int(value) // ranks
