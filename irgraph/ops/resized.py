"""Confirmation of the sizes of resized calls by declarations, without torch."""

from __future__ import annotations

from math import prod

from irgraph.facts import fact, facts_of
from irgraph.ir.op import Op, Value, tensors_in
from irgraph.ops.book import meaning_of
from irgraph.ops.meaning import ONE, OPAQUE, Axes, Joined, Merged

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
        self._compounds: list[tuple[int, bool, tuple[int, ...]]] = []
        self._results_start = sum(map(len, meaning.operands))
        self._is_usable = not meaning.sizes_by_torch and len(meaning.results) >= len(op.outputs)
        if self._is_usable and not meaning.groups:
            results = (result.axes for result in meaning.results[: len(op.outputs)])
            self._add_axes(tuple(axis for axes in (*meaning.operands, *results) for axis in axes))
        self._arguments = self._numbered_arguments()

    def _add_axes(self, axes: Axes) -> None:
        sensitive = self._sensitive_letters()
        stated = set(map(str, self._meaning.arguments.values()))
        for number, axis in enumerate(axes):
            if axis == ONE:
                self._ones.append(number)
            elif axis == OPAQUE or axis in sensitive:
                self._constant.append(number)
            elif isinstance(axis, str):
                first = self._first.setdefault(axis, number)
                if first >= self._results_start and axis not in stated:
                    self._constant.append(number)
                self._equal.append((first, number))
        for number, axis in enumerate(axes):
            if not isinstance(axis, str):
                self._add_compound(number, axis)

    def _add_compound(self, number: int, axis: Merged | Joined) -> None:
        parts = tuple(self._first.get(letter, -1) for letter in axis.letters)
        if -1 in parts:
            self._constant += [number, *(part for part in parts if part >= 0)]
        else:
            self._compounds.append((number, isinstance(axis, Joined), parts))

    def _sensitive_letters(self) -> set[str]:
        """Return letters on whose sizes others depend in ways that are no equations."""
        meaning = self._meaning
        letters = {*meaning.bounded, *meaning.fixed, *meaning.sizes}
        letters |= {letter for slope in meaning.slopes for letter in (slope.cause, slope.effect)}
        letters |= {letter for letter, _ in meaning.steps}
        return letters

    def _numbered_arguments(self) -> dict[str, dict[int, int]]:
        """Return the numbers of the sizes that arguments state, by name and index."""
        numbers: dict[str, dict[int, int]] = {}
        for (name, index), axis in self._meaning.arguments.items():
            if self._meaning.groups:
                number: int | None = self._results_start + index
            else:
                number = self._first.get(str(axis))
            if number is not None:
                numbers.setdefault(name, {})[index] = number
        return numbers

    def holds(self, op: Op) -> bool:
        """Return whether the equations hold for a call."""
        sizes = _sizes(op)
        if not self._is_usable or len(sizes) != len(self._sizes):
            return False
        if self._meaning.groups:
            return _is_reshape(op) and self._has_arguments(op, sizes)
        return (
            all(sizes[a] == sizes[b] for a, b in self._equal)
            and all(sizes[number] == 1 for number in self._ones)
            and all(sizes[number] == self._sizes[number] for number in self._constant)
            and all(_is_compound(sizes, *compound) for compound in self._compounds)
            and self._has_arguments(op, sizes)
        )

    def _has_arguments(self, op: Op, sizes: list[int]) -> bool:
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


def _sizes(op: Op) -> list[int]:
    return [size for tensor in (*op.inputs, *op.outputs) for size in tensor.shape]


def _is_reshape(op: Op) -> bool:
    operand, results = op.inputs[0], op.outputs
    count = operand.numel
    return operand.contiguous and count > 0 and all(result.numel == count for result in results)


def _is_compound(sizes: list[int], number: int, is_sum: bool, parts: tuple[int, ...]) -> bool:
    factors = [sizes[part] for part in parts]
    return sizes[number] == (sum(factors) if is_sum else prod(factors))


def _has_items(new: Value, old: Value, numbers: dict[int, int], sizes: list[int]) -> bool:
    """Return whether the items of a list are the sizes that they state, and others are the same."""
    if not isinstance(new, tuple) or not isinstance(old, tuple) or len(new) != len(old):
        return False
    expected = (sizes[numbers[i]] if i in numbers else item for i, item in enumerate(old))
    return all(a == b for a, b in zip(new, expected, strict=True))
