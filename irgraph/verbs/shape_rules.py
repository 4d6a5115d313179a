"""Sizes of results by rules, for ops about which torch need not be queried.

A rule returns the shapes of torch's results, or ``None`` if it cannot predict them or whether torch
accepts the sizes. Torch's other conditions, such as the types of operands, do not depend on sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TypeAlias

from irgraph.ir.calls import broadcast
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor

Shape: TypeAlias = tuple[int, ...]

Rule: TypeAlias = Callable[[Op], "list[Shape] | None"]

MAX_MODE = 2
"""Mode of bags that takes the maximum."""


def shapes_by_rule(op: Op) -> list[Shape] | None:
    """Return the shapes of a call's results, ``None`` if no rule determines them."""
    rule = RULES.get(op.name)
    return None if rule is None else rule(op)


def _argument(op: Op, position: int, name: str, default: Value = None) -> Value:
    """Return an argument: an operand, or an attribute."""
    return (
        op.operands[position] if len(op.operands) > position else op.attributes.get(name, default)
    )


def _tensors(op: Op, count: int) -> list[Tensor] | None:
    """Return the first ``count`` operands if all are tensors, ``None`` otherwise."""
    tensors = [value for value in op.operands[:count] if isinstance(value, Tensor)]
    return tensors if len(tensors) == count else None


def _axis(value: Value, rank: int) -> int | None:
    """Return the index of an axis, ``None`` if there is no such axis."""
    if not isinstance(value, int) or isinstance(value, bool) or not -rank <= value < rank:
        return None
    return int(value) % rank


def _select(op: Op) -> list[Shape] | None:
    (tensor,) = _tensors(op, 1) or (None,)
    if tensor is None:
        return None
    axis, index = _axis(_argument(op, 1, "dim"), tensor.rank), _argument(op, 2, "index")
    if axis is None or _axis(index, tensor.shape[axis]) is None:
        return None
    return [tensor.shape[:axis] + tensor.shape[axis + 1 :]]


def _slice(op: Op) -> list[Shape] | None:
    (tensor,) = _tensors(op, 1) or (None,)
    if tensor is None:
        return None
    axis = _axis(_argument(op, 1, "dim", 0), tensor.rank)
    bounds = _argument(op, 2, "start"), _argument(op, 3, "end"), _argument(op, 4, "step", 1)
    if axis is None or not all(bound is None or isinstance(bound, int) for bound in bounds):
        return None
    start, end, step = (None if bound is None else int(bound) for bound in bounds)  # type: ignore[arg-type]
    if step is None or step < 1:
        return None
    size = len(range(int(tensor.shape[axis]))[start:end:step])
    return [(*tensor.shape[:axis], size, *tensor.shape[axis + 1 :])]


def _bag(op: Op) -> list[Shape] | None:
    """Return the shapes of lookups of bags: sums, bags of indices, sizes, and indices of maxima."""
    weight, indices, offsets = _tensors(op, 3) or (None, None, None)
    weights = _argument(op, 6, "per_sample_weights")
    if weight is None or indices is None or offsets is None or weights is not None:
        return None
    if (weight.rank, indices.rank, offsets.rank) != (2, 1, 1):
        return None
    has_last_offset, mode = (
        _argument(op, 7, "include_last_offset", False),
        _argument(op, 4, "mode", 0),
    )
    bags = offsets.shape[0] - (has_last_offset is True)
    if bags < 0 or not isinstance(mode, int):
        return None
    bag_shape = bags, weight.shape[1]
    return [bag_shape, indices.shape, offsets.shape, bag_shape if mode == MAX_MODE else (0,)]


def _bag_backward(op: Op) -> list[Shape] | None:
    (gradient,) = _tensors(op, 1) or (None,)
    count, sparse = op.attributes.get("num_weights"), op.attributes.get("sparse")
    if gradient is None or gradient.rank != 2 or not isinstance(count, int) or sparse is not False:
        return None
    return [(count, gradient.shape[1])]


def _mm(op: Op) -> list[Shape] | None:
    a, b = _tensors(op, 2) or (None, None)
    return None if a is None or b is None else _product(a.shape, b.shape, 2)


def _bmm(op: Op) -> list[Shape] | None:
    a, b = _tensors(op, 2) or (None, None)
    return None if a is None or b is None else _product(a.shape, b.shape, 3)


def _product(a: Shape, b: Shape, rank: int) -> list[Shape] | None:
    if len(a) != rank or len(b) != rank or a[-1] != b[-2] or a[:-2] != b[:-2]:
        return None
    return [(*a[:-1], b[-1])]


def _addmm(op: Op) -> list[Shape] | None:
    bias, a, b = _tensors(op, 3) or (None, None, None)
    shapes = None if a is None or b is None else _product(a.shape, b.shape, 2)
    if shapes is None or bias is None or broadcast([bias.shape, *shapes]) != shapes[0]:
        return None
    return shapes


def _sum(op: Op) -> list[Shape] | None:
    (tensor,) = _tensors(op, 1) or (None,)
    if tensor is None:
        return None
    dim, keeps_dim = _argument(op, 1, "dim"), _argument(op, 2, "keepdim", False)
    dims = range(tensor.rank) if dim is None else dim if isinstance(dim, tuple) else (dim,)
    axes = [_axis(dim, tensor.rank) for dim in dims or range(tensor.rank)]
    if None in axes or len(set(axes)) < len(axes):
        return None
    if keeps_dim is True:
        return [tuple(1 if i in axes else size for i, size in enumerate(tensor.shape))]
    return [tuple(size for i, size in enumerate(tensor.shape) if i not in axes)]


def _cat(op: Op) -> list[Shape] | None:
    operand = op.operands[0] if op.operands else ()
    parts = [t for t in operand if isinstance(t, Tensor)] if isinstance(operand, tuple) else []
    axis = _axis(_argument(op, 1, "dim", 0), parts[0].rank) if parts else None
    if axis is None:
        return None
    other_shapes = {(*t.shape[:axis], *t.shape[axis + 1 :]) if t.rank > axis else () for t in parts}
    if len(other_shapes) > 1 or any(
        part.rank != following.rank for part, following in pairwise(parts)
    ):
        return None
    first = parts[0].shape
    return [(*first[:axis], sum(int(t.shape[axis]) for t in parts), *first[axis + 1 :])]


def _t(op: Op) -> list[Shape] | None:
    (tensor,) = _tensors(op, 1) or (None,)
    return [tensor.shape[::-1]] if tensor is not None and tensor.rank <= 2 else None


def _transpose(op: Op) -> list[Shape] | None:
    (tensor,) = _tensors(op, 1) or (None,)
    if tensor is None:
        return None
    first, second = (_axis(_argument(op, 1 + i, f"dim{i}"), tensor.rank) for i in (0, 1))
    if first is None or second is None:
        return None
    shape = list(tensor.shape)
    shape[first], shape[second] = shape[second], shape[first]
    return [tuple(shape)]


def _view(op: Op) -> list[Shape] | None:
    """Return the new shape of a tensor without gaps; one size may be left to torch."""
    (tensor,) = _tensors(op, 1) or (None,)
    size = _argument(op, 1, "size")
    if tensor is None or not tensor.contiguous or not tensor.numel or not isinstance(size, tuple):
        return None
    sizes = [int(n) for n in size if isinstance(n, int)]
    rest, remainder = divmod(tensor.numel, math.prod(n for n in sizes if n != -1) or 1)
    if len(sizes) < len(size) or min(sizes, default=0) < -1 or sizes.count(-1) > 1 or remainder:
        return None
    if -1 not in sizes and rest != 1:
        return None
    return [tuple(rest if n == -1 else n for n in sizes)] if 0 not in sizes else None


def _sized_by_argument(op: Op) -> list[Shape] | None:
    size = _argument(op, 1, "size")
    if _tensors(op, 1) is None or not isinstance(size, tuple):
        return None
    sizes = tuple(int(n) for n in size if isinstance(n, int))
    return [sizes] if len(sizes) == len(size) and min(sizes, default=0) >= 0 else None


def _operand_shape(op: Op) -> list[Shape] | None:
    """Return the shape of all operands, if they are equal."""
    shapes = {tensor.shape for tensor in op.inputs}
    return [next(iter(shapes))] if len(shapes) == 1 else None


def _loss(op: Op) -> list[Shape] | None:
    """Return the shape of a mean or a sum over elements."""
    tensor, target = _tensors(op, 2) or (None, None)
    reduction = _argument(op, 3, "reduction", 1)
    if tensor is None or target is None or tensor.shape != target.shape or reduction not in (1, 2):
        return None
    return [()] if len(op.inputs) == 2 else None


def _loss_backward(op: Op) -> list[Shape] | None:
    gradient, tensor, target = _tensors(op, 3) or (None, None, None)
    if gradient is None or tensor is None or target is None or gradient.shape:
        return None
    return [tensor.shape] if tensor.shape == target.shape and len(op.inputs) == 3 else None


RULES: Mapping[str, Rule] = {
    "aten.select": _select,
    "aten.slice": _slice,
    "aten._embedding_bag": _bag,
    "aten._embedding_bag_backward": _bag_backward,
    "aten.mm": _mm,
    "aten.bmm": _bmm,
    "aten.addmm": _addmm,
    "aten.sum": _sum,
    "aten.cat": _cat,
    "aten.t": _t,
    "aten.transpose": _transpose,
    "aten.view": _view,
    "aten.new_zeros": _sized_by_argument,
    "aten._to_copy": _operand_shape,
    "aten.threshold_backward": _operand_shape,
    "aten.gelu_backward": _operand_shape,
    "aten.binary_cross_entropy": _loss,
    "aten.binary_cross_entropy_backward": _loss_backward,
}
"""Rules by the names of ops, for all their overloads."""
