"""Axes of tensors that broadcast, reduce or reshape: building blocks of kinds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from irgraph.ir.tensor import Tensor
from irgraph.ops.meaning import ONE, Axes


def letters(rank: int, prefix: str = "d") -> Axes:
    """Return a letter for each axis, numbered from the first."""
    return tuple(f"{prefix}{i}" for i in range(rank))


def broadcast_shape(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """Return the shape to which tensors broadcast; an empty axis stays empty."""
    shapes = [tensor.shape for tensor in tensors]
    rank = max(map(len, shapes), default=0)
    shape: list[int] = []
    for index in range(-rank, 0):
        sizes = [s[index] for s in shapes if len(s) >= -index]
        shape.append(0 if 0 in sizes else max(sizes))
    return tuple(shape)


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
