"""Layouts of views: strides and offsets of their results, from the operand's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Protocol

from msgspec import Struct

from irgraph.ir.dim import same
from irgraph.ops.meaning import ONE, Axis, Joined, Meaning, Result, letters_of

REPEATED = 0
"""Stride of an axis whose elements are all the same."""


class Arithmetic(Protocol):
    """Sums and products of sizes, which may be expressions."""

    def plus(self, *sizes: int) -> int:
        """Return a sum."""

    def times(self, *sizes: int) -> int:
        """Return a product."""


class Numbers:
    """Arithmetic on plain numbers."""

    def plus(self, *sizes: int) -> int:
        """Return a sum."""
        return sum(sizes)

    def times(self, *sizes: int) -> int:
        """Return a product."""
        return prod(sizes)


class Layout(Struct, frozen=True):
    """The layout of a tensor in its buffer.

    Attributes:
        shape: its sizes.
        strides: elements to step along each axis.
        offset: bytes from the start of the buffer to the first element.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


class View:
    """A view of one operand, by its meaning.

    ``start`` overrides the first index of a piece, as an expression.
    """

    def __init__(
        self,
        meaning: Meaning,
        operand: Layout,
        arithmetic: Arithmetic,
        start: int | None = None,
    ) -> None:
        self._meaning = meaning
        self._operand = operand
        self._arithmetic = arithmetic
        self._start = start
        self._sources: dict[str, int] = {}
        for index, axis in enumerate(meaning.operands[0]):
            for letter in letters_of(axis):
                self._sources[letter] = index
        for cause, effect, count in meaning.multiples:
            if count == 1 and cause in self._sources:
                self._sources[effect] = self._sources[cause]

    def layouts(self, shapes: Sequence[tuple[int, ...]], itemsize: int) -> list[Layout]:
        """Return the layouts of results with given shapes."""
        if self._meaning.groups:
            strides = self._reshaped_strides(shapes[0])
            return [Layout(shapes[0], strides, self._operand.offset)] * len(shapes)
        layouts: list[Layout] = []
        distance = 0
        for result, shape in zip(self._meaning.results, shapes, strict=False):
            strides = tuple(
                self._stride(result, index, axis, size)
                for index, (axis, size) in enumerate(zip(result.axes, shape, strict=True))
            )
            start = self._arithmetic.plus(distance, self._piece_distance(result))
            bytes_before = self._arithmetic.times(start, itemsize)
            offset = self._arithmetic.plus(self._operand.offset, bytes_before)
            layouts.append(Layout(shape, strides, offset))
            distance = self._arithmetic.plus(distance, self._joined_distance(result, shape))
        return layouts

    def _stride(self, result: Result, index: int, axis: Axis, size: int) -> int:
        operand = self._operand
        if axis == ONE:
            if index >= len(operand.shape):
                return 1
            return self._arithmetic.times(operand.shape[index], operand.strides[index])
        source = self._sources.get(str(axis))
        if source is None and result.piece is not None:
            step = operand.strides[result.piece.axis]
            return self._arithmetic.times(step, result.piece.step)
        is_joined = source is not None and isinstance(self._meaning.operands[0][source], Joined)
        if source is not None and (is_joined or same(operand.shape[source], size)):
            return operand.strides[source]
        return 1 if same(size, 1) else REPEATED

    def _piece_distance(self, result: Result) -> int:
        """Return the elements between the starts of the operand and of a piece."""
        piece = result.piece
        if piece is None or piece.axis >= len(self._operand.shape):
            return 0
        start = piece.start if self._start is None else self._start
        if start < 0:
            start = self._arithmetic.plus(start, self._operand.shape[piece.axis])
        return self._arithmetic.times(start, self._operand.strides[piece.axis])

    def _joined_distance(self, result: Result, shape: tuple[int, ...]) -> int:
        """Return the elements between the starts of two adjacent pieces of a joined axis."""
        for index, axis in enumerate(self._meaning.operands[0]):
            if isinstance(axis, Joined) and len(result.axes) > index:
                return self._arithmetic.times(shape[index], self._operand.strides[index])
        return 0

    def _reshaped_strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the strides of a reshape of an operand without gaps in split or merged axes."""
        operand = self._operand
        strides = [1] * len(shape)
        for before, after in self._meaning.groups:
            long = [i for i in before if operand.shape[i] != 1] or before
            step = operand.strides[long[-1]] if long else 1
            for i in reversed(after):
                strides[i] = step
                step = self._arithmetic.times(step, shape[i])
        return tuple(strides)


def merges_gaps(meaning: Meaning, operand: Layout) -> bool:
    """Return whether a reshape merges axes of an operand with gaps between their elements."""
    for before, _ in meaning.groups:
        long = [i for i in before if operand.shape[i] != 1]
        for outer, inner in pairwise(long):
            if operand.strides[outer] != operand.strides[inner] * operand.shape[inner]:
                return True
    return False
