"""Sizes of letters in a call, and the shapes that its declaration demands."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

from irgraph.ir.op import Value
from irgraph.ir.tensor import Shape, Tensor
from irgraph.ops.call import Call
from irgraph.ops.meaning import ONE, OPAQUE, Axes, Axis, Joined, Meaning

PartialShape: TypeAlias = tuple["int | None", ...]
"""A shape of which some sizes are unknown."""


class SizeError(Exception):
    """Sizes of operands or arguments contradict the declaration; the message names them."""


def result_shapes(call: Call, meaning: Meaning) -> list[PartialShape]:
    """Return the shape of each result of a meaning, as operands and arguments determine it.

    Raises ``SizeError`` if they contradict each other.
    """
    sizes = _Sizes(call)
    pairs = list(zip(call.inputs, meaning.operands, strict=True))
    for tensor, axes in pairs:
        sizes.add(tensor, axes)
    for letter, size in meaning.sizes.items():
        sizes.add_argument(letter, size)
    for (name, index), axis in meaning.arguments.items():
        sizes.add_argument(axis, _number(call.arguments.get(name), index))
    for tensor, axes in pairs:
        sizes.check_compounds(tensor, axes)
    return [tuple(map(sizes.size, result.axes)) for result in meaning.results]


def size_error(call: Call, meaning: Meaning) -> str:
    """Return how the sizes of a call contradict a meaning, ``""`` if they do not."""
    try:
        shapes = result_shapes(call, meaning)
    except SizeError as error:
        return str(error)
    tensors = (*call.outputs, *call.written)
    for tensor, shape in zip(tensors, shapes, strict=False):
        if not _is_possible(tensor.shape, shape):
            return f"makes {shape_text(shape)}, not {_description(tensor)}"
    return ""


def _is_possible(shape: Shape, expected: PartialShape) -> bool:
    if len(shape) != len(expected):
        return False
    pairs = zip(shape, expected, strict=True)
    return all(size in (actual, None) for actual, size in pairs)


def shape_text(shape: PartialShape) -> str:
    """Return a shape as models write it, without expressions; ``?`` for an unknown size."""
    sizes = ["?" if size is None else str(int(size)) for size in shape]
    return f"[{', '.join(sizes)}]"


def shapes_text(tensors: Sequence[Tensor]) -> str:
    """Return the shapes of tensors as models write them."""
    return ", ".join(shape_text(tensor.shape) for tensor in tensors)


def _description(tensor: Tensor) -> str:
    return f"%{tensor.name}, {shape_text(tensor.shape)}"


def _number(value: Value, index: int) -> int | None:
    if isinstance(value, tuple) and index >= 0:
        value = value[index]
    return value if isinstance(value, int) else None


class _Sizes:
    """The sizes of the letters of a call."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._sizes: dict[str, int] = {}
        self._sources: dict[str, Tensor] = {}

    def add(self, tensor: Tensor, axes: Axes) -> None:
        """Add the sizes of an operand's axes."""
        if len(axes) != tensor.rank:
            raise SizeError(_rank_error(tensor, axes))
        for axis, size in zip(axes, tensor.shape, strict=True):
            if axis == ONE:
                self._check_one(size)
            elif isinstance(axis, str) and axis != OPAQUE:
                self._add_letter(axis, size, tensor)

    def _check_one(self, size: int) -> None:
        if size != 1:
            shapes = shapes_text(self._call.inputs)
            raise SizeError(f"its operands do not broadcast: {shapes}")

    def _add_letter(
        self,
        letter: str,
        size: int,
        tensor: Tensor,
    ) -> None:
        known_size = self._sizes.setdefault(letter, size)
        source = self._sources.setdefault(letter, tensor)
        if known_size != size:
            first, second = shape_text(source.shape), shape_text(tensor.shape)
            raise SizeError(f"its operands do not fit: {first} and {second}")

    def add_argument(self, axis: Axis, size: int | None) -> None:
        """Add a size that an argument states."""
        if size is None:
            return
        known_size = self.size(axis)
        if known_size is None and isinstance(axis, str):
            self._sizes[axis] = size
        elif known_size not in (size, None):
            shapes = shapes_text(self._call.inputs)
            raise SizeError(f"its argument {size} does not fit its operands: {shapes}")

    def check_compounds(self, tensor: Tensor, axes: Axes) -> None:
        """Check the axes of an operand that are made of several letters."""
        for axis, size in zip(axes, tensor.shape, strict=True):
            if isinstance(axis, str):
                continue
            if self.size(axis) not in (size, None):
                raise SizeError(f"its arguments do not fit {_description(tensor)}")

    def size(self, axis: Axis) -> int | None:
        """Return the size of an axis, ``None`` if it is unknown."""
        if axis == ONE:
            return 1
        if isinstance(axis, str):
            return self._sizes.get(axis)
        parts = [self._sizes.get(letter) for letter in axis.letters]
        sizes = [size for size in parts if size is not None]
        if len(sizes) < len(parts):
            return None
        return sum(sizes) if isinstance(axis, Joined) else prod(sizes)


def _rank_error(tensor: Tensor, axes: Axes) -> str:
    if not axes:
        return f"takes a single number for all, not {_description(tensor)}"
    return f"takes {len(axes)} axes, not {_description(tensor)}"
