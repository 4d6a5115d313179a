"""Axes of tensors that broadcast, reduce or reshape: building blocks of kinds."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from irgraph.ir.tensor import Shape, Tensor
from irgraph.ops.meaning import ONE, OPAQUE, Axes, Axis


def letters(rank: int, prefix: str = "d") -> tuple[str, ...]:
    """Return a letter for each axis, numbered from the first."""
    return tuple(f"{prefix}{i}" for i in range(rank))


def opaque(tensor: Tensor) -> Axes:
    """Return the axes of a tensor of which nothing is known."""
    return (OPAQUE,) * tensor.rank


def broadcast_shape(tensors: Iterable[Tensor]) -> Shape:
    """Return the shape to which tensors broadcast; an empty axis stays empty."""
    shapes = [tensor.shape for tensor in tensors]
    return _widest(shapes)


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


def aligned(
    tensor: Tensor,
    shape: Sequence[int],
    prefix: str = "d",
) -> Axes:
    """Return the axes of a tensor that broadcasts to a shape, aligned at the last axis.

    An axis of one element is ``ONE`` if the shape has more there, else it has the letter.
    """
    return broadcast_axes(tensor, shape, letters(len(shape), prefix))


def broadcast_axes(
    tensor: Tensor,
    shape: Sequence[int],
    axes: Axes,
) -> Axes:
    """Return the axes of a tensor that broadcasts to a shape with given axes."""
    first = len(shape) - tensor.rank
    sizes = zip(tensor.shape, shape[first:], strict=True)
    repeats = [size != full for size, full in sizes]
    return with_ones(axes[first:], repeats)


def with_ones(axes: Axes, repeats: Iterable[bool]) -> Axes:
    """Return axes with ``ONE`` in some positions."""
    pairs = zip(axes, repeats, strict=True)
    return tuple(ONE if is_one else axis for axis, is_one in pairs)


def without(axes: Axes, removed: Container[int]) -> Axes:
    """Return axes without those at some indices."""
    indexed = enumerate(axes)
    return tuple(axis for index, axis in indexed if index not in removed)


def replaced(axes: Axes, index: int, axis: Axis) -> Axes:
    """Return axes with another one at an index."""
    before = axes[:index]
    after = axes[index + 1 :]
    return (*before, axis, *after)
