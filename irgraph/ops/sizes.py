"""Sizes of letters in a call, and the shapes that its declaration demands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from irgraph.ir.op import Value
from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.meaning import ONE, OPAQUE, Axes, Axis, Joined, Meaning

Shape: TypeAlias = tuple[int, ...]

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
    for tensor, shape in zip((*call.outputs, *call.written), shapes, strict=False):
        if not _is_possible(tensor.shape, shape):
            return f"makes {_partial_text(shape)}, not %{tensor.name}, {shape_text(tensor.shape)}"
    return ""


def _is_possible(shape: Shape, expected: PartialShape) -> bool:
    if len(shape) != len(expected):
        return False
    return all(size in (actual, None) for actual, size in zip(shape, expected, strict=True))


def shape_text(shape: Shape) -> str:
    """Return a shape as models write it, without expressions."""
    return f"[{', '.join(str(int(size)) for size in shape)}]"


def _partial_text(shape: PartialShape) -> str:
    return f"[{', '.join('?' if size is None else str(int(size)) for size in shape)}]"


def _number(value: Value, index: int) -> int | None:
    item = value[index] if isinstance(value, tuple) and index >= 0 else value
    return item if isinstance(item, int) else None


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
        sizes = self._sizes
        for axis, size in zip(axes, tensor.shape, strict=True):
            if not isinstance(axis, str) or axis == OPAQUE:
                continue
            if axis == ONE:
                if size != 1:
                    shapes = ", ".join(shape_text(t.shape) for t in self._call.inputs)
                    raise SizeError(f"its operands do not broadcast: {shapes}")
            elif sizes.setdefault(axis, size) != size:
                pair = shape_text(self._sources[axis].shape), shape_text(tensor.shape)
                raise SizeError(f"its operands do not fit: {pair[0]} and {pair[1]}")
            else:
                self._sources.setdefault(axis, tensor)

    def add_argument(self, axis: Axis, size: int | None) -> None:
        """Add a size that an argument states."""
        if size is None:
            return
        known = self.size(axis)
        if known is None and isinstance(axis, str):
            self._sizes[axis] = size
        elif known not in (size, None):
            shapes = ", ".join(shape_text(t.shape) for t in self._call.inputs)
            raise SizeError(f"its argument {size} does not fit its operands: {shapes}")

    def check_compounds(self, tensor: Tensor, axes: Axes) -> None:
        """Check the axes of an operand that are made of several letters."""
        for axis, size in zip(axes, tensor.shape, strict=True):
            if not isinstance(axis, str) and self.size(axis) not in (size, None):
                raise SizeError(
                    f"its arguments do not fit %{tensor.name}, {shape_text(tensor.shape)}"
                )

    def size(self, axis: Axis) -> int | None:
        """Return the size of an axis, ``None`` if it is unknown."""
        if isinstance(axis, str):
            return 1 if axis == ONE else self._sizes.get(axis)
        total = 0 if isinstance(axis, Joined) else 1
        for part in self._parts(axis):
            if part is None:
                return None
            total = total + part if isinstance(axis, Joined) else total * part
        return total

    def _parts(self, axis: Axis) -> Iterator[int | None]:
        if not isinstance(axis, str):
            yield from map(self._sizes.get, axis.letters)


def _rank_error(tensor: Tensor, axes: Axes) -> str:
    shape = shape_text(tensor.shape)
    if not axes:
        return f"takes a single number for all, not %{tensor.name}, {shape}"
    return f"takes {len(axes)} axes, not %{tensor.name}, {shape}"
