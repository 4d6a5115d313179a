"""View ops: how their axes map, and the layouts of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from irgraph.axes.algebra import Algebra
from irgraph.axes.relations import ConstrainedOp, Multiple, Product, Relation, Spot, Sum, axis
from irgraph.ir.dim import same
from irgraph.ir.tensor import Tensor

Places = list["int | None"]
"""For each axis of a result, the axis of the operand it comes from, or ``None``."""

IDENTITY = ("aten.detach", "aten.alias", "aten.lift_fresh", "aten.view_as", "aten.positive")
RESHAPES = {
    "aten.view": "size", "aten._unsafe_view": "size", "aten.reshape": "shape",
    "aten._reshape_alias": "size",
}  # fmt: skip
"""Ops that split and merge axes, and the argument that gives the shape."""

PIECES = {"aten.slice": ("start", "end"), "aten.narrow": ("start", "length")}
"""Ops that slice an axis, and the arguments that give the bounds."""


def _transposed(site: ConstrainedOp) -> Places:
    places = list(range(site.inputs[0].rank))
    if site.op.name == "aten.t":
        return list(reversed(places))
    a, b = (site.number_of(name, 0) for name in ("dim0", "dim1"))
    places[a], places[b] = places[b], places[a]
    return list(places)


def _permuted(site: ConstrainedOp) -> Places:
    rank = site.inputs[0].rank
    return [place % rank for place in site.sizes("dims")]


def _without(site: ConstrainedOp) -> Places:
    rank = site.inputs[0].rank
    gone = site.number_of("dim", 0) % rank
    return [place for place in range(rank) if place != gone]


def _unsqueezed(site: ConstrainedOp) -> Places:
    places: Places = list(range(site.inputs[0].rank))
    places.insert(site.number_of("dim", 0) % (len(places) + 1), None)
    return places


def _squeezed(site: ConstrainedOp) -> Places:
    x = site.inputs[0]
    dim = site.attribute("dim", tuple(range(x.rank)))
    chosen = dim if isinstance(dim, tuple) else (dim,)
    gone = {place % x.rank for place in chosen if isinstance(place, int)}
    return [i for i in range(x.rank) if i not in gone or x.shape[i] != 1]


def _expanded(site: ConstrainedOp) -> Places:
    x, y = site.inputs[0], site.outputs[0]
    first = y.rank - x.rank
    same = [i >= first and x.shape[i - first] == y.shape[i] for i in range(y.rank)]
    return [i - first if kept else None for i, kept in enumerate(same)]


def _same(site: ConstrainedOp) -> Places:
    return list(range(site.inputs[0].rank))


PLACES: Mapping[str, Callable[[ConstrainedOp], Places]] = {
    **dict.fromkeys(("aten.t", "aten.transpose", "aten.swapaxes"), _transposed),
    **dict.fromkeys(("aten.select", "aten.unbind"), _without),
    **dict.fromkeys((*IDENTITY, *PIECES, "aten.split", "aten.split_with_sizes"), _same),
    "aten.permute": _permuted,
    "aten.unsqueeze": _unsqueezed,
    "aten.squeeze": _squeezed,
    "aten.expand": _expanded,
}
"""Where the axes of a result come from."""


def view_relation(site: ConstrainedOp) -> Relation | None:
    """Return the size constraints of a view; ``None`` for an op that is not a known view."""
    if not site.inputs or not site.outputs:
        return None
    name = site.op.name
    if name in RESHAPES:
        return _reshaped(site)
    if name not in PLACES:
        return None
    x = site.inputs[0]
    found = Relation()
    dim = site.number_of("dim", 0) % x.rank if x.rank else -1
    parted = dim if name in PIECES or name.startswith("aten.split") else -1
    for y in site.outputs:
        for i, place in enumerate(PLACES[name](site)):
            if place is None or i == parted:
                continue
            if name == "aten.expand" and y.shape[i] == 1:
                found.follows.append(Multiple(axis(x, place), axis(y, i), 1))
            else:
                found.equal.append((axis(y, i), axis(x, place)))
    if name == "aten.select":
        found.free.add(axis(x, dim))
    elif name == "aten.expand":
        _sizes_of(site, found)
    elif name.startswith("aten.split"):
        _split(site, found, dim)
    return found


def _sizes_of(site: ConstrainedOp, found: Relation) -> None:
    """Record that an op's argument ``size`` is the shape of its result."""
    y = site.outputs[0]
    for i, size in enumerate(site.sizes("size")):
        if size == y.shape[i]:
            found.equal.append((axis(y, i), site.argument("size", i)))


def _split(site: ConstrainedOp, found: Relation, dim: int) -> None:
    """Record that parts sum to an axis; with one ``size`` for all, they share it."""
    name = "split_sizes" if "split_sizes" in site.op.attributes else "split_size"
    ends = [axis(y, dim) for y in site.outputs]
    found.sums.append(Sum(axis(site.inputs[0], dim), tuple(ends)))
    if name == "split_sizes":
        found.equal += [(end, site.argument(name, i)) for i, end in enumerate(ends)]
        return
    size = site.number_of(name, 0)
    group = [e for e, y in zip(ends, site.outputs, strict=True) if y.shape[dim] == size]
    found.equal.append((*group, site.argument(name)))


def _reshaped(site: ConstrainedOp) -> Relation:
    x, y = site.inputs[0], site.outputs[0]
    name = RESHAPES[site.op.name]
    found = Relation()
    for before, after in grouped(x.shape, y.shape):
        ins: tuple[Spot, ...] = tuple(axis(x, i) for i in before)
        outs: tuple[Spot, ...] = tuple(axis(y, i) for i in after)
        if len(ins) == len(outs) == 1:
            found.equal.append((*ins, *outs))
        else:
            found.products.append(Product(ins, outs))
    for i, size in enumerate(site.sizes(name)):
        if size >= 0:
            found.equal.append((axis(y, i), site.argument(name, i)))
    return found


def grouped(a: Sequence[int], b: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the smallest runs of axes of two shapes with equal products of sizes."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        before, after = [i] if i < len(a) else [], [j] if j < len(b) else []
        left, right = _product(a, before), _product(b, after)
        i, j = i + len(before), j + len(after)
        while left != right and (i < len(a) or j < len(b)):
            if (left < right and i < len(a)) or j >= len(b):
                before.append(i)
                i += 1
            else:
                after.append(j)
                j += 1
            left, right = _product(a, before), _product(b, after)
        groups.append((before, after))
    return _joined(groups)


def _joined(groups: list[tuple[list[int], list[int]]]) -> list[tuple[list[int], list[int]]]:
    """Join lone axes of size 1 to the group before them."""
    found: list[tuple[list[int], list[int]]] = []
    for before, after in groups:
        if found and not (before and after):
            found[-1] = (found[-1][0] + before, found[-1][1] + after)
        else:
            found.append((before, after))
    return found


def _product(shape: Sequence[int], places: Sequence[int]) -> int:
    product = 1
    for place in places:
        product *= shape[place]
    return product


def is_known_view(site: ConstrainedOp) -> bool:
    """Return whether the layouts of an op's results in its first operand are known here."""
    name = site.op.name
    return bool(site.inputs and site.outputs) and (name in PLACES or name in RESHAPES)


class Layout:
    """Shape, strides (elements) and offset (bytes) of a tensor in its buffer, as expressions."""

    __slots__ = ("offset", "shape", "strides")

    def __init__(self, shape: Sequence[int], strides: Sequence[int], offset: int) -> None:
        self.shape, self.strides, self.offset = tuple(shape), tuple(strides), offset


def view_layouts(
    site: ConstrainedOp, x: Layout, shapes: Sequence[Sequence[int]], first: int, algebra: Algebra
) -> list[Layout]:
    """Return the layouts of the results of a view.

    ``x`` is its operand, ``shapes`` are those of its results, ``first`` is the start of a slice.
    """
    name = site.op.name
    if name in RESHAPES:
        return [Layout(shapes[0], _reshaped_strides(x, shapes[0], algebra), x.offset)]
    places = PLACES[name](site)
    found = []
    start = x.offset
    item = site.inputs[0].itemsize
    dim = site.number_of("dim", 0) % len(x.shape) if x.shape else 0
    if name == "aten.select":
        index = site.number_of("index", 0)
        ahead = algebra.plus(index, x.shape[dim]) if index < 0 else index
        start = algebra.plus(start, algebra.times(ahead, x.strides[dim], item))
    elif name in PIECES:
        ahead = algebra.plus(first, x.shape[dim]) if first < 0 else first
        start = algebra.plus(start, algebra.times(ahead, x.strides[dim], item))
    for shape in shapes:
        steps = [_step(x, shape, i, p, algebra, name) for i, p in enumerate(places)]
        found.append(Layout(shape, steps, start))
        if name == "aten.unbind":
            start = algebra.plus(start, algebra.times(x.strides[dim], item))
        elif name.startswith("aten.split"):
            start = algebra.plus(start, algebra.times(shape[dim], x.strides[dim], item))
    return found


def _step(
    x: Layout, shape: Sequence[int], i: int, place: int | None, algebra: Algebra, name: str
) -> int:
    """Return the stride of an axis; an axis that the operand lacks is repeated, or of size 1."""
    if place is not None and (name != "aten.expand" or same(x.shape[place], shape[i])):
        return x.strides[place]
    if name == "aten.expand" or i >= len(x.shape):
        return 0 if not same(shape[i], 1) else 1
    return algebra.times(x.shape[i], x.strides[i])


def _reshaped_strides(x: Layout, shape: Sequence[int], algebra: Algebra) -> list[int]:
    steps = [1] * len(shape)
    for before, after in grouped(x.shape, shape):
        long = [i for i in before if x.shape[i] != 1] or before
        step = x.strides[long[-1]] if long else 1
        for i in reversed(after):
            steps[i] = step
            step = algebra.times(step, shape[i])
    return steps


def dense_strides(tensor: Tensor, shape: Sequence[int], algebra: Algebra) -> list[int] | None:
    """Return the strides of a gapless tensor with its axes in the same order; ``None``: has gaps.

    ``shape`` is the new one; the order of axes in memory is the tensor's.
    """
    order = list(range(tensor.rank))
    if tensor.strides is not None and not any(tensor.strides):
        return [0] * tensor.rank  # sparse, or one element for all
    if tensor.strides is not None:
        # strides of axes of size 1 are arbitrary: such axes keep their place among the others
        order.sort(key=lambda i: (-tensor.strides[i], i))  # type: ignore[index]
        if not _gapless(tensor, order):
            return None
    steps = [1] * tensor.rank
    step = 1
    for i in reversed(order):
        steps[i] = step
        step = algebra.times(step, shape[i])
    return steps


def _gapless(tensor: Tensor, order: Sequence[int]) -> bool:
    step = 1
    for i in reversed(order):
        if tensor.shape[i] != 1 and tensor.strides is not None:
            if tensor.strides[i] != step:
                return False
            step *= tensor.shape[i]
    return True
