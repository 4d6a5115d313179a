"""Tensors: a name, a type and the bytes of a buffer that they cover."""

from __future__ import annotations

import math
from typing import TypeAlias

from msgspec import Struct

from irgraph.ir.dtypes import ITEMSIZE

MAX_TENSOR_BYTES = 2**50
"""Maximum size of a tensor in bytes: a pebibyte, so that sums over a step fit into 64 bits."""


Shape: TypeAlias = tuple[int, ...]
"""A number for each axis: sizes, strides or indices."""


class DType(str):
    """The name of an element type used as a value, as in ``dtype = f32``."""

    __slots__ = ()


class DeviceRef(str):
    """The name of a declared device used as a value, as in ``device = @gpu0``."""

    __slots__ = ()


class Tensor(Struct, frozen=True, gc=False):
    """A named, typed view of a buffer.

    Attributes:
        name: without the leading ``%``; unique in a graph.
        dtype: a key of ``ITEMSIZE``.
        shape: elements along each axis; a ``Dim`` if the size depends on a dimension.
        buffer: the allocation, without the leading ``$``; views of one buffer may overlap.
        strides: elements to step along each axis, or ``None`` if contiguous (row-major).
        offset: bytes from the start of the buffer to the first element.
        device: a declared device's name, without the leading ``@``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    buffer: str
    strides: tuple[int, ...] | None = None
    offset: int = 0
    device: str = "gpu0"

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ITEMSIZE[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, ``numel * itemsize``."""
        return self.numel * self.itemsize

    @property
    def distinct(self) -> int:
        """Number of elements with distinct bytes: an expanded axis repeats the same elements."""
        if self.strides is None:
            return self.numel
        pairs = zip(self.shape, self.strides, strict=True)
        return math.prod(size for size, stride in pairs if stride)

    @property
    def contiguous(self) -> bool:
        """Whether the elements are in row-major order without gaps."""
        return self.strides is None or self.strides == row_major(self.shape)

    @property
    def dense(self) -> bool:
        """Whether the elements are without gaps, in any order of axes."""
        if self.strides is None:
            return True
        axes = sorted(zip(self.strides, self.shape, strict=True), reverse=True)
        return tuple(step for step, _ in axes) == row_major(tuple(size for _, size in axes))

    @property
    def extent(self) -> tuple[int, int]:
        """First byte and one past the last byte of the buffer that the elements may touch."""
        if self.strides is None:
            return self.offset, self.offset + math.prod(self.shape) * ITEMSIZE[self.dtype]
        if 0 in self.shape:
            return self.offset, self.offset
        pairs = zip(self.shape, self.strides, strict=True)
        last = sum((size - 1) * stride for size, stride in pairs)
        return self.offset, self.offset + (last + 1) * self.itemsize


def row_major(shape: Shape) -> Shape:
    """Return the strides, in elements, of a contiguous tensor of this shape (as torch counts)."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def canonical_strides(shape: Shape, strides: Shape | None) -> Shape | None:
    """Return strides, or ``None`` if they are the strides of a contiguous tensor.

    As in torch, the stride along an axis of one element is ignored.
    """
    if strides is None:
        return None
    pairs = zip(shape, strides, row_major(shape), strict=True)
    return None if all(size == 1 or a == b for size, a, b in pairs) else strides


def size_error(tensor: Tensor) -> str:
    """Return an error if a tensor is larger than any device's memory, else ``""``."""
    end = tensor.extent[1]
    return (
        f"%{tensor.name} would take {end:.2g} bytes, 1 PiB is the most"
        if end > MAX_TENSOR_BYTES
        else ""
    )


def negative_size_error(tensor: Tensor) -> str:
    """Return an error if a size of a tensor is negative, with its expression, else ``""``."""
    negative = next((size for size in tensor.shape if size < 0), None)
    if negative is None:
        return ""
    text = str(negative)
    spelt = f" ({text})" if text != str(int(negative)) else ""
    return f"%{tensor.name} would have {int(negative)} elements along an axis{spelt}"


def overlap(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors may share a byte (a conservative test on byte ranges)."""
    if a.buffer != b.buffer:
        return False
    (a0, a1), (b0, b1) = a.extent, b.extent
    return a0 < b1 and b0 < a1 and not _in_disjoint_columns(a, b)


def _in_disjoint_columns(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are in disjoint columns of one matrix."""
    for tensor in (a, b):
        for step in tensor.strides or ():
            width = step * tensor.itemsize
            columns_a, columns_b = (_column(a, width), _column(b, width)) if width else (None, None)
            if (
                columns_a
                and columns_b
                and (columns_a[1] <= columns_b[0] or columns_b[1] <= columns_a[0])
            ):
                return True
    return False


def _column(tensor: Tensor, width: int) -> tuple[int, int] | None:
    """Return the range of a tensor's bytes in each row of ``width`` bytes; ``None`` if it wraps."""
    steps = row_major(tensor.shape) if tensor.strides is None else tensor.strides
    pairs = zip(steps, tensor.shape, strict=True)
    spans = [
        step * tensor.itemsize * (size - 1)
        for step, size in pairs
        if size > 1 and step * tensor.itemsize % width
    ]
    start = tensor.offset % width
    end = start + sum(spans) + tensor.itemsize
    return (start, end) if end <= width else None
