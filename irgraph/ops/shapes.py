"""Axes of tensors that broadcast, reduce or reshape: building blocks of kinds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from irgraph.ir.tensor import Tensor
from irgraph.ops.meaning import ONE, Axes


def letters(rank: int, prefix: str = "d") -> Axes:
    """Return a letter for each axis, numbered from the first."""
    return tuple(f"{prefix}{i}" for i in range(rank))


Shape: TypeAlias = tuple[int, ...]


def broadcast_shape(tensors: Iterable[Tensor]) -> Shape:
    """Return the shape to which tensors broadcast; an empty axis stays empty."""
    return _widest([tensor.shape for tensor in tensors])


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape to which shapes broadcast; ``None`` if they do not, or there are none."""
    widest = _widest(shapes)
    for shape in shapes:
        pairs = zip(reversed(shape), reversed(widest), strict=False)
        if any(size not in (1, wide) for size, wide in pairs):
            return None
    return widest if shapes else None


def _widest(shapes: Sequence[Shape]) -> Shape:
    rank = max(map(len, shapes), default=0)
    widest: list[int] = []
    for index in range(-rank, 0):
        sizes = [shape[index] for shape in shapes if len(shape) >= -index]
        widest.append(0 if 0 in sizes else max(sizes))
    return tuple(widest)


def aligned(tensor: Tensor, shape: Sequence[int], prefix: str = "d") -> Axes:
    """Return the axes of a tensor that broadcasts to a shape, aligned at the last axis.

    An axis of one element is ``ONE`` if the shape has more there, else it has the letter.
    """
    return broadcast_axes(tensor, shape, letters(len(shape), prefix))


def broadcast_axes(tensor: Tensor, shape: Sequence[int], axes: Axes) -> Axes:
    """Return the axes of a tensor that broadcasts to a shape with given axes."""
    first = len(shape) - tensor.rank
    pairs = zip(axes[first:], tensor.shape, shape[first:], strict=True)
    return tuple(axis if size == whole else ONE for axis, size, whole in pairs)


def without(axes: Axes, removed: Iterable[int]) -> Axes:
    """Return axes without those at some indices."""
    removed = set(removed)
    return tuple(axis for i, axis in enumerate(axes) if i not in removed)


def replaced(axes: Axes, index: int, axis: str) -> Axes:
    """Return axes with another one at an index."""
    return (*axes[:index], axis, *axes[index + 1 :])
