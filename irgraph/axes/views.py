"""View ops: the mapping of their axes, and the layouts of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from irgraph.axes.algebra import Algebra
from irgraph.axes.relations import ConstrainedOp, Multiple, Product, Relation, SizeKey, Sum, axis
from irgraph.ir.dim import same
from irgraph.ir.tensor import Tensor

SourceAxes = list["int | None"]
"""For each axis of a result, the axis of the operand that it equals, or ``None``."""

IDENTITY = ("aten.detach", "aten.alias", "aten.lift_fresh", "aten.view_as", "aten.positive")
RESHAPES = {
    "aten.view": "size", "aten._unsafe_view": "size", "aten.reshape": "shape",
    "aten._reshape_alias": "size",
}  # fmt: skip
"""Ops that split and merge axes, and the argument that specifies the shape."""

PIECES = {"aten.slice": ("start", "end"), "aten.narrow": ("start", "length")}
"""Ops that slice an axis, and the arguments that specify the bounds."""


def _transpose(site: ConstrainedOp) -> SourceAxes:
    sources = list(range(site.inputs[0].rank))
    if site.op.name == "aten.t":
        return list(reversed(sources))
    a, b = (site.number_of(name, 0) for name in ("dim0", "dim1"))
    sources[a], sources[b] = sources[b], sources[a]
    return list(sources)


def _permute(site: ConstrainedOp) -> SourceAxes:
    rank = site.inputs[0].rank
    return [source % rank for source in site.sizes("dims")]


def _drop_axis(site: ConstrainedOp) -> SourceAxes:
    rank = site.inputs[0].rank
    removed_axis = site.number_of("dim", 0) % rank
    return [source for source in range(rank) if source != removed_axis]


def _unsqueeze(site: ConstrainedOp) -> SourceAxes:
    sources: SourceAxes = list(range(site.inputs[0].rank))
    sources.insert(site.number_of("dim", 0) % (len(sources) + 1), None)
    return sources


def _squeeze(site: ConstrainedOp) -> SourceAxes:
    x = site.inputs[0]
    dim = site.attribute("dim", tuple(range(x.rank)))
    dims = dim if isinstance(dim, tuple) else (dim,)
    removed_axes = {source % x.rank for source in dims if isinstance(source, int)}
    return [i for i in range(x.rank) if i not in removed_axes or x.shape[i] != 1]


def _expand(site: ConstrainedOp) -> SourceAxes:
    x, y = site.inputs[0], site.outputs[0]
    first = y.rank - x.rank
    is_equal_by_axis = [i >= first and x.shape[i - first] == y.shape[i] for i in range(y.rank)]
    return [i - first if is_equal else None for i, is_equal in enumerate(is_equal_by_axis)]


def _identity(site: ConstrainedOp) -> SourceAxes:
    return list(range(site.inputs[0].rank))


SOURCE_AXES: Mapping[str, Callable[[ConstrainedOp], SourceAxes]] = {
    **dict.fromkeys(("aten.t", "aten.transpose", "aten.swapaxes"), _transpose),
    **dict.fromkeys(("aten.select", "aten.unbind"), _drop_axis),
    **dict.fromkeys((*IDENTITY, *PIECES, "aten.split", "aten.split_with_sizes"), _identity),
    "aten.permute": _permute,
    "aten.unsqueeze": _unsqueeze,
    "aten.squeeze": _squeeze,
    "aten.expand": _expand,
}
"""Functions that return the source axes of a view's result, by op."""


def view_relation(site: ConstrainedOp) -> Relation | None:
    """Return the size constraints of a view; ``None`` for an op that is not a known view."""
    if not site.inputs or not site.outputs:
        return None
    name = site.op.name
    if name in RESHAPES:
        return _reshape_relation(site)
    if name not in SOURCE_AXES:
        return None
    x = site.inputs[0]
    relation = Relation()
    dim = site.number_of("dim", 0) % x.rank if x.rank else -1
    split_axis = dim if name in PIECES or name.startswith("aten.split") else -1
    for y in site.outputs:
        for i, source in enumerate(SOURCE_AXES[name](site)):
            if source is None or i == split_axis:
                continue
            if name == "aten.expand" and y.shape[i] == 1:
                relation.follows.append(Multiple(axis(x, source), axis(y, i), 1))
            else:
                relation.equal.append((axis(y, i), axis(x, source)))
    if name == "aten.select":
        relation.free.add(axis(x, dim))
    elif name == "aten.expand":
        _add_sizes(site, relation)
    elif name.startswith("aten.split"):
        _add_split(site, relation, dim)
    return relation


def _add_sizes(site: ConstrainedOp, relation: Relation) -> None:
    """Record that an op's argument ``size`` is the shape of its result."""
    y = site.outputs[0]
    for i, size in enumerate(site.sizes("size")):
        if size == y.shape[i]:
            relation.equal.append((axis(y, i), site.argument("size", i)))


def _add_split(site: ConstrainedOp, relation: Relation, dim: int) -> None:
    """Record that parts sum to an axis; if there is one ``size`` for all, they share it."""
    name = "split_sizes" if "split_sizes" in site.op.attributes else "split_size"
    part_axes = [axis(y, dim) for y in site.outputs]
    relation.sums.append(Sum(axis(site.inputs[0], dim), tuple(part_axes)))
    if name == "split_sizes":
        relation.equal += [(end, site.argument(name, i)) for i, end in enumerate(part_axes)]
        return
    size = site.number_of(name, 0)
    group = [e for e, y in zip(part_axes, site.outputs, strict=True) if y.shape[dim] == size]
    relation.equal.append((*group, site.argument(name)))


def _reshape_relation(site: ConstrainedOp) -> Relation:
    x, y = site.inputs[0], site.outputs[0]
    name = RESHAPES[site.op.name]
    relation = Relation()
    for before, after in equal_size_groups(x.shape, y.shape):
        ins: tuple[SizeKey, ...] = tuple(axis(x, i) for i in before)
        outs: tuple[SizeKey, ...] = tuple(axis(y, i) for i in after)
        if len(ins) == len(outs) == 1:
            relation.equal.append((*ins, *outs))
        else:
            relation.products.append(Product(ins, outs))
    for i, size in enumerate(site.sizes(name)):
        if size >= 0:
            relation.equal.append((axis(y, i), site.argument(name, i)))
    return relation


def equal_size_groups(a: Sequence[int], b: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the smallest runs of axes of two shapes with equal products of sizes."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        before, after = [i] if i < len(a) else [], [j] if j < len(b) else []
        before_size, after_size = _product(a, before), _product(b, after)
        i, j = i + len(before), j + len(after)
        while before_size != after_size and (i < len(a) or j < len(b)):
            if (before_size < after_size and i < len(a)) or j >= len(b):
                before.append(i)
                i += 1
            else:
                after.append(j)
                j += 1
            before_size, after_size = _product(a, before), _product(b, after)
        groups.append((before, after))
    return _merge_unit_axes(groups)


def _merge_unit_axes(
    groups: list[tuple[list[int], list[int]]],
) -> list[tuple[list[int], list[int]]]:
    """Join lone axes of size 1 to the group before them."""
    result: list[tuple[list[int], list[int]]] = []
    for before, after in groups:
        if result and not (before and after):
            result[-1] = (result[-1][0] + before, result[-1][1] + after)
        else:
            result.append((before, after))
    return result


def _product(shape: Sequence[int], axes: Sequence[int]) -> int:
    product = 1
    for i in axes:
        product *= shape[i]
    return product


def is_known_view(site: ConstrainedOp) -> bool:
    """Return whether ``view_layouts`` can compute the layouts of an op's results."""
    name = site.op.name
    return bool(site.inputs and site.outputs) and (name in SOURCE_AXES or name in RESHAPES)


class SymbolicLayout:
    """Shape, strides (elements) and offset (bytes) of a tensor in its buffer, as expressions."""

    __slots__ = ("offset", "shape", "strides")

    def __init__(self, shape: Sequence[int], strides: Sequence[int], offset: int) -> None:
        self.shape, self.strides, self.offset = tuple(shape), tuple(strides), offset


def view_layouts(
    site: ConstrainedOp,
    x: SymbolicLayout,
    shapes: Sequence[Sequence[int]],
    first: int,
    algebra: Algebra,
) -> list[SymbolicLayout]:
    """Return the layouts of the results of a view.

    ``x`` is the layout of its operand, ``shapes`` are its results' shapes, ``first`` is the start
    of a slice.
    """
    name = site.op.name
    if name in RESHAPES:
        return [SymbolicLayout(shapes[0], _reshaped_strides(x, shapes[0], algebra), x.offset)]
    sources = SOURCE_AXES[name](site)
    layouts = []
    start = x.offset
    itemsize = site.inputs[0].itemsize
    dim = site.number_of("dim", 0) % len(x.shape) if x.shape else 0
    if name == "aten.select":
        index = site.number_of("index", 0)
        position = algebra.plus(index, x.shape[dim]) if index < 0 else index
        start = algebra.plus(start, algebra.times(position, x.strides[dim], itemsize))
    elif name in PIECES:
        position = algebra.plus(first, x.shape[dim]) if first < 0 else first
        start = algebra.plus(start, algebra.times(position, x.strides[dim], itemsize))
    for shape in shapes:
        strides = [_stride(x, shape, i, source, algebra, name) for i, source in enumerate(sources)]
        layouts.append(SymbolicLayout(shape, strides, start))
        if name == "aten.unbind":
            start = algebra.plus(start, algebra.times(x.strides[dim], itemsize))
        elif name.startswith("aten.split"):
            start = algebra.plus(start, algebra.times(shape[dim], x.strides[dim], itemsize))
    return layouts


def _stride(
    x: SymbolicLayout, shape: Sequence[int], i: int, source: int | None, algebra: Algebra, name: str
) -> int:
    """Return the stride of an axis; an axis that the operand lacks is repeated, or of size 1."""
    if source is not None and (name != "aten.expand" or same(x.shape[source], shape[i])):
        return x.strides[source]
    if name == "aten.expand" or i >= len(x.shape):
        return 0 if not same(shape[i], 1) else 1
    return algebra.times(x.shape[i], x.strides[i])


def _reshaped_strides(x: SymbolicLayout, shape: Sequence[int], algebra: Algebra) -> list[int]:
    strides = [1] * len(shape)
    for before, after in equal_size_groups(x.shape, shape):
        long = [i for i in before if x.shape[i] != 1] or before
        step = x.strides[long[-1]] if long else 1
        for i in reversed(after):
            strides[i] = step
            step = algebra.times(step, shape[i])
    return strides


def dense_strides(tensor: Tensor, shape: Sequence[int], algebra: Algebra) -> list[int] | None:
    """Return the strides of a gapless tensor with its axes in the same order; ``None``: has gaps.

    ``shape`` is the new one; the order of axes in memory is the tensor's.
    """
    order = list(range(tensor.rank))
    if tensor.strides is not None and not any(tensor.strides):
        return [0] * tensor.rank  # sparse, or one element for all
    if tensor.strides is not None:
        # strides of axes of size 1 are arbitrary: such axes keep their position among the others
        order.sort(key=lambda i: (-tensor.strides[i], i))  # type: ignore[index]
        if not _is_gapless(tensor, order):
            return None
    strides = [1] * tensor.rank
    step = 1
    for i in reversed(order):
        strides[i] = step
        step = algebra.times(step, shape[i])
    return strides


def _is_gapless(tensor: Tensor, order: Sequence[int]) -> bool:
    step = 1
    for i in reversed(order):
        if tensor.shape[i] != 1 and tensor.strides is not None:
            if tensor.strides[i] != step:
                return False
            step *= tensor.shape[i]
    return True
