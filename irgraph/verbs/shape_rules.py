"""Sizes of results by rules: of ops about which torch need not be asked.

A rule returns the shapes that torch gives, or ``None`` where it is not sure of them or of that
torch takes the sizes. What else torch holds against a call, such as the types of its operands, no
size changes.
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

MAX = 2
"""The mode of bags that takes the greatest."""


def shapes_by_rule(op: Op) -> list[Shape] | None:
    """Return the shapes of a call's results, ``None`` where no rule is sure of them."""
    rule = RULES.get(op.name)
    return None if rule is None else rule(op)


def _given(op: Op, place: int, name: str, default: Value = None) -> Value:
    """Return an argument: an operand, or an attribute."""
    return op.operands[place] if len(op.operands) > place else op.attributes.get(name, default)


def _tensors(op: Op, count: int) -> list[Tensor] | None:
    """Return the first operands if they are so many tensors."""
    found = [value for value in op.operands[:count] if isinstance(value, Tensor)]
    return found if len(found) == count else None


def _axis(value: Value, rank: int) -> int | None:
    """Return the place of an axis, ``None`` where there is none such."""
    if not isinstance(value, int) or isinstance(value, bool) or not -rank <= value < rank:
        return None
    return int(value) % rank


def _select(op: Op) -> list[Shape] | None:
    (given,) = _tensors(op, 1) or (None,)
    if given is None:
        return None
    axis, index = _axis(_given(op, 1, "dim"), given.rank), _given(op, 2, "index")
    if axis is None or _axis(index, given.shape[axis]) is None:
        return None
    return [given.shape[:axis] + given.shape[axis + 1 :]]


def _slice(op: Op) -> list[Shape] | None:
    (given,) = _tensors(op, 1) or (None,)
    if given is None:
        return None
    axis = _axis(_given(op, 1, "dim", 0), given.rank)
    bounds = _given(op, 2, "start"), _given(op, 3, "end"), _given(op, 4, "step", 1)
    if axis is None or not all(bound is None or isinstance(bound, int) for bound in bounds):
        return None
    start, end, step = (None if bound is None else int(bound) for bound in bounds)  # type: ignore[arg-type]
    if step is None or step < 1:
        return None
    size = len(range(int(given.shape[axis]))[start:end:step])
    return [(*given.shape[:axis], size, *given.shape[axis + 1 :])]


def _bag(op: Op) -> list[Shape] | None:
    """Lists of indices, each with where it ends: sums, bags of indices, sizes, and places."""
    weight, indices, offsets = _tensors(op, 3) or (None, None, None)
    weights = _given(op, 6, "per_sample_weights")
    if weight is None or indices is None or offsets is None or weights is not None:
        return None
    if (weight.rank, indices.rank, offsets.rank) != (2, 1, 1):
        return None
    last, mode = _given(op, 7, "include_last_offset", False), _given(op, 4, "mode", 0)
    bags = offsets.shape[0] - (last is True)
    if bags < 0 or not isinstance(mode, int):
        return None
    made = bags, weight.shape[1]
    return [made, indices.shape, offsets.shape, made if mode == MAX else (0,)]


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
    found = None if a is None or b is None else _product(a.shape, b.shape, 2)
    if found is None or bias is None or broadcast([bias.shape, *found]) != found[0]:
        return None
    return found


def _sum(op: Op) -> list[Shape] | None:
    (given,) = _tensors(op, 1) or (None,)
    if given is None:
        return None
    of, keep = _given(op, 1, "dim"), _given(op, 2, "keepdim", False)
    places = range(given.rank) if of is None else of if isinstance(of, tuple) else (of,)
    axes = [_axis(place, given.rank) for place in places or range(given.rank)]
    if None in axes or len(set(axes)) < len(axes):
        return None
    if keep is True:
        return [tuple(1 if i in axes else size for i, size in enumerate(given.shape))]
    return [tuple(size for i, size in enumerate(given.shape) if i not in axes)]


def _cat(op: Op) -> list[Shape] | None:
    given = op.operands[0] if op.operands else ()
    parts = [t for t in given if isinstance(t, Tensor)] if isinstance(given, tuple) else []
    axis = _axis(_given(op, 1, "dim", 0), parts[0].rank) if parts else None
    if axis is None:
        return None
    others = {(*t.shape[:axis], *t.shape[axis + 1 :]) if t.rank > axis else () for t in parts}
    if len(others) > 1 or any(one.rank != other.rank for one, other in pairwise(parts)):
        return None
    first = parts[0].shape
    return [(*first[:axis], sum(int(t.shape[axis]) for t in parts), *first[axis + 1 :])]


def _t(op: Op) -> list[Shape] | None:
    (given,) = _tensors(op, 1) or (None,)
    return [given.shape[::-1]] if given is not None and given.rank <= 2 else None


def _transpose(op: Op) -> list[Shape] | None:
    (given,) = _tensors(op, 1) or (None,)
    if given is None:
        return None
    one, other = (_axis(_given(op, 1 + i, f"dim{i}"), given.rank) for i in (0, 1))
    if one is None or other is None:
        return None
    shape = list(given.shape)
    shape[one], shape[other] = shape[other], shape[one]
    return [tuple(shape)]


def _view(op: Op) -> list[Shape] | None:
    """Sizes over all elements of a tensor without gaps; one of them may be left to torch."""
    (given,) = _tensors(op, 1) or (None,)
    size = _given(op, 1, "size")
    if given is None or not given.contiguous or not given.numel or not isinstance(size, tuple):
        return None
    wanted = [int(n) for n in size if isinstance(n, int)]
    rest, left = divmod(given.numel, math.prod(n for n in wanted if n != -1) or 1)
    if len(wanted) < len(size) or min(wanted, default=0) < -1 or wanted.count(-1) > 1 or left:
        return None
    if -1 not in wanted and rest != 1:
        return None
    return [tuple(rest if n == -1 else n for n in wanted)] if 0 not in wanted else None


def _filled(op: Op) -> list[Shape] | None:
    size = _given(op, 1, "size")
    if _tensors(op, 1) is None or not isinstance(size, tuple):
        return None
    wanted = tuple(int(n) for n in size if isinstance(n, int))
    return [wanted] if len(wanted) == len(size) and min(wanted, default=0) >= 0 else None


def _alike(op: Op) -> list[Shape] | None:
    """Results as large as every operand, which are all equally large."""
    shapes = {tensor.shape for tensor in op.inputs}
    return [next(iter(shapes))] if len(shapes) == 1 else None


def _loss(op: Op) -> list[Shape] | None:
    """A mean or a sum over elements."""
    given, target = _tensors(op, 2) or (None, None)
    reduction = _given(op, 3, "reduction", 1)
    if given is None or target is None or given.shape != target.shape or reduction not in (1, 2):
        return None
    return [()] if len(op.inputs) == 2 else None


def _loss_backward(op: Op) -> list[Shape] | None:
    gradient, given, target = _tensors(op, 3) or (None, None, None)
    if gradient is None or given is None or target is None or gradient.shape:
        return None
    return [given.shape] if given.shape == target.shape and len(op.inputs) == 3 else None


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
    "aten.new_zeros": _filled,
    "aten._to_copy": _alike,
    "aten.threshold_backward": _alike,
    "aten.gelu_backward": _alike,
    "aten.binary_cross_entropy": _loss,
    "aten.binary_cross_entropy_backward": _loss_backward,
}
"""Rules by the names of ops, of all their forms."""
