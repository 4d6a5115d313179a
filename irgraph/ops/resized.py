"""Confirmation of the sizes of resized calls by declarations, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import prod

from msgspec import Struct

from irgraph.facts import fact, facts_of
from irgraph.ir.op import Op, Value, tensors_in
from irgraph.ops.book import meaning_of
from irgraph.ops.meaning import ONE, OPAQUE, Axes, Joined, Meaning, Merged, axis_names

SLOT = "irgraph.ops.resized"


def confirms_resize(original: Op, resized: Op) -> bool:
    """Return whether the declaration of a call shows that another size of it is valid.

    ``original`` must have the sizes that torch computes.
    """
    if meaning_of(original) is None:
        return False
    return fact(original, SLOT, _SizeCheck).holds(resized)


VALID = "irgraph.ops.resized.valid"
"""Slot of an op whose sizes have been validated."""


def has_valid_sizes(op: Op) -> bool:
    """Return whether the sizes of an op have been validated."""
    return VALID in facts_of(op)


def mark_valid_sizes(op: Op) -> None:
    """Record that the sizes of an op have been validated."""
    facts_of(op)[VALID] = True


Sizes = Sequence[int]
"""The sizes of a call's operands and results, one after the other."""


class _Compound(Struct, frozen=True):
    """The size of an axis that is the sum or the product of other sizes, by their numbers."""

    number: int
    is_sum: bool
    parts: tuple[int, ...]

    def holds(self, sizes: Sizes) -> bool:
        parts = [sizes[part] for part in self.parts]
        total = sum(parts) if self.is_sum else prod(parts)
        return sizes[self.number] == total


class _SizeCheck:
    """The equations between the sizes of a call, for calls that differ from it in sizes only.

    Sizes of operands and results are numbered one after the other.
    """

    def __init__(self, op: Op) -> None:
        meaning = meaning_of(op)
        assert meaning is not None
        self._meaning = meaning
        self._attributes = op.attributes
        self._sizes = _sizes(op)
        self._first: dict[str, int] = {}
        self._equal: list[tuple[int, int]] = []
        self._ones: list[int] = []
        self._constant: list[int] = []
        self._compounds: list[_Compound] = []
        self._results_start = sum(map(len, meaning.operands))
        results = meaning.results[: len(op.outputs)]
        has_results = len(results) == len(op.outputs)
        self._is_usable = has_results and not meaning.sizes_by_torch
        if self._is_usable and not meaning.groups:
            axes_of_results = [result.axes for result in results]
            axes = chain(*meaning.operands, *axes_of_results)
            self._add_axes(tuple(axes))
        self._arguments = self._numbered_arguments()

    def _add_axes(self, axes: Axes) -> None:
        sensitive = _sensitive_letters(self._meaning)
        stated = axis_names(self._meaning.arguments.values())
        for number, axis in enumerate(axes):
            if axis == ONE:
                self._ones.append(number)
            elif axis == OPAQUE or axis in sensitive:
                self._constant.append(number)
            elif isinstance(axis, str):
                self._add_letter(number, axis, axis in stated)
        for number, axis in enumerate(axes):
            if not isinstance(axis, str):
                self._add_compound(number, axis)

    def _add_letter(
        self,
        number: int,
        letter: str,
        is_stated: bool,
    ) -> None:
        first = self._first.setdefault(letter, number)
        is_new = first >= self._results_start
        if is_new and not is_stated:
            self._constant.append(number)
        self._equal.append((first, number))

    def _add_compound(
        self,
        number: int,
        axis: Merged | Joined,
    ) -> None:
        parts = [self._first.get(letter) for letter in axis.letters]
        numbered = tuple(part for part in parts if part is not None)
        if len(numbered) < len(parts):
            self._constant += [number, *numbered]
            return
        is_sum = isinstance(axis, Joined)
        self._compounds.append(_Compound(number, is_sum, numbered))

    def _numbered_arguments(self) -> dict[str, dict[int, int]]:
        """Return the numbers of the sizes that arguments state, by name and index."""
        numbers: dict[str, dict[int, int]] = {}
        for (name, index), axis in self._meaning.arguments.items():
            number = self._first.get(str(axis))
            if self._meaning.groups:
                number = self._results_start + index
            if number is not None:
                numbers.setdefault(name, {})[index] = number
        return numbers

    def holds(self, op: Op) -> bool:
        """Return whether the equations hold for a call."""
        sizes = _sizes(op)
        if not self._is_usable or len(sizes) != len(self._sizes):
            return False
        is_reshape = bool(self._meaning.groups)
        is_valid = _is_reshape(op) if is_reshape else self._has_sizes(sizes)
        return is_valid and self._has_arguments(op, sizes)

    def _has_sizes(self, sizes: Sizes) -> bool:
        if any(sizes[number] != 1 for number in self._ones):
            return False
        if any(sizes[number] != self._sizes[number] for number in self._constant):
            return False
        if any(sizes[first] != sizes[number] for first, number in self._equal):
            return False
        return all(compound.holds(sizes) for compound in self._compounds)

    def _has_arguments(self, op: Op, sizes: Sizes) -> bool:
        """Return whether arguments are the sizes that they state, and others are the same."""
        for name, old in self._attributes.items():
            numbers = self._arguments.get(name)
            new = op.attributes.get(name)
            if numbers is None:
                if new != old and not any(tensors_in([old])):
                    return False
            elif not isinstance(old, tuple):
                if new != sizes[numbers[-1]]:
                    return False
            elif not _has_items(new, old, numbers, sizes):
                return False
        return True


def _sensitive_letters(meaning: Meaning) -> set[str]:
    """Return letters on whose sizes others depend in ways that are no equations."""
    letters = {*meaning.bounded, *meaning.fixed, *meaning.sizes}
    for slope in meaning.slopes:
        letters |= {slope.cause, slope.effect}
    for letter, _ in meaning.steps:
        letters.add(letter)
    return letters


def _sizes(op: Op) -> Sizes:
    shapes = [tensor.shape for tensor in (*op.inputs, *op.outputs)]
    return list(chain(*shapes))


def _is_reshape(op: Op) -> bool:
    operand = op.inputs[0]
    count = operand.numel
    if not operand.contiguous or not count:
        return False
    return all(result.numel == count for result in op.outputs)


def _has_items(
    new: Value,
    old: Value,
    numbers: dict[int, int],
    sizes: Sizes,
) -> bool:
    """Return whether the items of a list are the sizes that they state, and others are the same."""
    if not isinstance(new, tuple) or not isinstance(old, tuple):
        return False
    expected = list(old)
    for index, number in numbers.items():
        expected[index] = sizes[number]
    return list(new) == expected
