"""Layouts of views: strides and offsets of their results, from the operand's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Protocol

from msgspec import Struct

from irgraph.ir.dim import same
from irgraph.ir.tensor import Shape
from irgraph.ops.meaning import ONE, Joined, Meaning, Result, letters_of

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

    shape: Shape
    strides: Shape
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
        self._axes = meaning.operands[0]
        self._sources = _indices_by_letter(meaning)

    def layouts(
        self,
        shapes: Sequence[Shape],
        itemsize: int,
    ) -> list[Layout]:
        """Return the layouts of results with given shapes."""
        if self._meaning.groups:
            strides = self._reshaped_strides(shapes[0])
            layout = Layout(shapes[0], strides, self._operand.offset)
            return [layout] * len(shapes)
        arithmetic = self._arithmetic
        layouts: list[Layout] = []
        distance = 0
        for result, shape in zip(self._meaning.results, shapes, strict=False):
            start = arithmetic.plus(distance, self._piece_distance(result))
            bytes_before = arithmetic.times(start, itemsize)
            offset = arithmetic.plus(self._operand.offset, bytes_before)
            layouts.append(Layout(shape, self._strides(result, shape), offset))
            length = self._joined_distance(result, shape)
            distance = arithmetic.plus(distance, length)
        return layouts

    def _strides(self, result: Result, shape: Shape) -> Shape:
        sizes = zip(result.axes, shape, strict=True)
        strides: list[int] = []
        for index, (axis, size) in enumerate(sizes):
            if axis == ONE:
                strides.append(self._new_stride(index))
            else:
                strides.append(self._stride(result, str(axis), size))
        return tuple(strides)

    def _new_stride(self, index: int) -> int:
        """Return the stride of a new axis of one element, as torch gives it."""
        operand = self._operand
        if index >= len(operand.shape):
            return 1
        return self._arithmetic.times(operand.shape[index], operand.strides[index])

    def _stride(self, result: Result, letter: str, size: int) -> int:
        operand = self._operand
        source = self._sources.get(letter)
        piece = result.piece
        if source is not None:
            is_joined = isinstance(self._axes[source], Joined)
            if is_joined or same(operand.shape[source], size):
                return operand.strides[source]
        elif piece is not None:
            step = operand.strides[piece.axis]
            return self._arithmetic.times(step, piece.step)
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

    def _joined_distance(self, result: Result, shape: Shape) -> int:
        """Return the elements between the starts of two adjacent pieces of a joined axis."""
        for index, axis in enumerate(self._axes):
            if isinstance(axis, Joined) and len(result.axes) > index:
                step = self._operand.strides[index]
                return self._arithmetic.times(shape[index], step)
        return 0

    def _reshaped_strides(self, shape: Shape) -> Shape:
        """Return the strides of a reshape of an operand without gaps in split or merged axes."""
        operand = self._operand
        strides = [1] * len(shape)
        for before, after in self._meaning.groups:
            long_axes = _long_axes(operand, before) or before
            step = operand.strides[long_axes[-1]] if long_axes else 1
            for index in reversed(after):
                strides[index] = step
                step = self._arithmetic.times(step, shape[index])
        return tuple(strides)


def _indices_by_letter(meaning: Meaning) -> dict[str, int]:
    """Return the axis of a view's operand that each letter is, or is a part of."""
    indices: dict[str, int] = {}
    for index, axis in enumerate(meaning.operands[0]):
        for letter in letters_of(axis):
            indices[letter] = index
    for cause, effect, count in meaning.multiples:
        if count == 1 and cause in indices:
            indices[effect] = indices[cause]
    return indices


def _long_axes(layout: Layout, axes: Shape) -> Shape:
    """Return the axes among some that do not have one element."""
    return tuple(index for index in axes if layout.shape[index] != 1)


def merges_gaps(meaning: Meaning, operand: Layout) -> bool:
    """Return whether a reshape merges axes of an operand with gaps between their elements."""
    for before, _ in meaning.groups:
        for outer, inner in pairwise(_long_axes(operand, before)):
            length = operand.strides[inner] * operand.shape[inner]
            if operand.strides[outer] != length:
                return True
    return False
