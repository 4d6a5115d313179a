"""A graph with one axis, and all sizes tied to it, resized."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from math import gcd, lcm, sqrt

from msgspec.structs import replace

from irgraph.axes.algebra import GROWTH, STEP, Algebra, terms_of
from irgraph.axes.layout import arguments, layouts
from irgraph.axes.propagation import Propagation
from irgraph.axes.relations import Argument, AxisOf
from irgraph.axes.sizes import FixedSizeError
from irgraph.ir.dim import Dim, Term
from irgraph.ir.edit import map_value
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor, canonical_strides, size_error
from irgraph.ops.strides import Layout

MAX_CACHED_GROWTHS = 8
"""Maximum number of cached propagations: most graphs are resized more than once."""

Key = tuple[int, tuple[AxisOf, ...]]


class Growth:
    """Growth of some axes of one size, with all dependent sizes: computed once for any new size."""

    def __init__(self, graph: Graph, seeds: Sequence[AxisOf]) -> None:
        self.graph = graph
        first = graph.by_name[seeds[0][0]].shape[seeds[0][1]]
        self.algebra = Algebra(graph.dims)
        self.factors, self.count = _coefficient(first)
        grown = self.algebra.make([(self.factors, self.count), ((*self.factors, GROWTH), STEP)])
        change = Propagation(graph, dict.fromkeys(seeds, grown))
        self.uses = change.uses
        self._steps = [(site.op, change.growth(key), step) for site, key, step in change.steps()]
        self.arguments = arguments(change)
        self.tensors = layouts(change, self.arguments)
        self._grains = list(self._required_grains())

    @property
    def multiple(self) -> int:
        """Divisor of every new size: the product of the dimensions in the axis's expression."""
        return self.algebra.make([(self.factors, 1)])

    def _required_grains(self) -> Iterator[tuple[int, Op | None]]:
        """Yield each divisor that the growth must have, and the op that requires it."""
        for key, size in self.arguments.items():
            yield _grain(size), self._op(key)
        for name, layout in self.tensors.items():
            producer = self.uses.producer(self.graph.by_name[name])
            grain = lcm(*map(_grain, layout.shape))
            yield grain, producer.op if producer else None
        for op, grown, step in self._steps:
            yield lcm(_grain(grown), step), op

    def graph_at(self, size: int) -> Graph:
        """Return the graph with the axis at a size, a multiple of ``multiple``.

        Raises ``FixedSizeError`` if an op would have non-integer sizes.
        """
        increase = size // int(self.multiple) - self.count
        for grain, op in self._grains:
            if increase % grain:
                step = self.algebra.times(self.multiple, grain)
                message = f"{op.name if op else 'the step'} needs multiples of {step}"
                raise FixedSizeError(
                    op, f"{message}: {_nearest(size, increase, grain, int(self.multiple))}"
                )
        size_cache = _SizeCache(self.algebra, increase)
        tensors = {
            name: self._tensor(name, layout, size_cache) for name, layout in self.tensors.items()
        }
        self._check_constants(tensors)
        size_by_argument = {
            key: size_cache(size, self._op(key)) for key, size in self.arguments.items()
        }
        return _GraphRebuilder(self.graph, tensors, self._by_op(size_by_argument)).graph()

    def _check_constants(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise ``FixedSizeError`` if a constant with known elements would change its shape."""
        for declared in self.graph.tensors:
            tensor = tensors.get(declared.tensor.name, declared.tensor)
            if declared.value is not None and tensor.shape != declared.tensor.shape:
                name = declared.tensor.name
                raise FixedSizeError(None, f"%{name} is a constant: its value has one size")

    def _by_op(
        self, size_by_argument: Mapping[Argument, int]
    ) -> dict[Op, dict[tuple[str, int], int]]:
        sizes_by_op: dict[Op, dict[tuple[str, int], int]] = {}
        for (number, name, index), size in size_by_argument.items():
            sizes_by_op.setdefault(self.uses.sites[number].op, {})[name, index] = size
        return sizes_by_op

    def _op(self, key: Argument) -> Op:
        return self.uses.sites[key[0]].op

    def _tensor(self, name: str, layout: Layout, size_cache: _SizeCache) -> Tensor:
        old = self.graph.by_name[name]
        producer = self.uses.producer(old)
        op = producer.op if producer else None
        shape = tuple(size_cache(size, op) for size in layout.shape)
        strides = tuple(size_cache(step, op) for step in layout.strides)
        offset = size_cache(layout.offset, op)
        tensor = replace(old, shape=shape, strides=canonical_strides(shape, strides), offset=offset)
        if problem := size_error(tensor):
            raise FixedSizeError(op, problem)
        return tensor


class _SizeCache:
    """Sizes at one growth of the axis, cached: most occur in many places."""

    def __init__(self, algebra: Algebra, increase: int) -> None:
        self._algebra = algebra
        self._increase = increase
        self._value_by_terms: dict[tuple[Term, ...], int] = {}

    def __call__(self, size: int, op: Op | None) -> int:
        """Return the value of a size; ``op`` is named in the error."""
        if not isinstance(size, Dim):
            return size
        value = self._value_by_terms.get(size.terms)
        if value is None:
            computed = self._algebra.size_at(size, self._increase)
            if computed is None or computed < 0:
                raise FixedSizeError(op, f"{op.name if op else 'the step'} allows no such size")
            value = self._value_by_terms[size.terms] = computed
        return value


def _grain(size: int) -> int:
    """Return the smallest growth whose multiples make a size an integer."""
    linear = [count for names, count in terms_of(size) if names.count(GROWTH) == 1]
    return lcm(*(STEP // gcd(STEP, count) for count in linear))


def _nearest(size: int, increase: int, grain: int, multiple: int) -> str:
    """Return the nearest valid sizes."""
    below, above = size - increase % grain * multiple, size + -increase % grain * multiple
    return f"nearest valid sizes: {below}, {above}" if below > 0 else f"nearest valid size: {above}"


def growth_of(graph: Graph, seeds: Sequence[AxisOf]) -> Growth:
    """Return the ``Growth`` of some axes, cached for the latest graphs."""
    key = (id(graph), tuple(seeds))
    growth = _growth_cache.pop(key, None)
    if growth is None:
        growth = Growth(graph, seeds)
    _growth_cache[key] = growth
    while len(_growth_cache) > MAX_CACHED_GROWTHS:
        _growth_cache.popitem(last=False)
    return growth


_growth_cache: OrderedDict[Key, Growth] = OrderedDict()


def _coefficient(size: int) -> tuple[tuple[str, ...], int]:
    """Return a size as a product of dimensions and a coefficient; sums count as numbers."""
    terms = terms_of(size)
    if len(terms) == 1:
        return terms[0]
    return (), int(size)


class _GraphRebuilder:
    """Replaces tensors and arguments; unchanged ops stay the same object."""

    def __init__(
        self,
        graph: Graph,
        tensors: Mapping[str, Tensor],
        sizes_by_op: Mapping[Op, Mapping[tuple[str, int], int]],
    ) -> None:
        self._graph = graph
        self._tensors = tensors
        self._sizes_by_op = sizes_by_op

    def graph(self) -> Graph:
        """Return the graph with all replaced."""
        declared = tuple(replace(d, tensor=self.tensor(d.tensor)) for d in self._graph.tensors)
        return replace(
            self._graph,
            tensors=declared,
            ops=tuple(map(self.op, self._graph.ops)),
            returned=map_value(self._graph.returned, self.tensor),
        )

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return the resized tensor, or the tensor itself if it does not change."""
        return self._tensors.get(tensor.name, tensor)

    def op(self, op: Op) -> Op:
        """Return an op over the new tensors, without its notes."""
        body = tuple(map(self.op, op.body))
        if op.name.startswith("autograd.MeanBackward"):
            body = self._with_mean_divisor(op, body)
        size_by_argument = self._sizes_by_op.get(op, {})
        has_new_tensors = any(t.name in self._tensors for t in (*op.inputs, *op.outputs))
        has_new_body = any(a is not b for a, b in zip(body, op.body, strict=True))
        if not (size_by_argument or has_new_tensors or has_new_body or op.notes):
            return op
        if not (size_by_argument or has_new_tensors):
            return replace(op, body=body, notes={})
        attributes = {
            name: self._argument(name, map_value(value, self.tensor), size_by_argument)
            for name, value in op.attributes.items()
        }
        if "scale" in attributes:
            attributes["scale"] = self._scale(op, attributes["scale"])
        return replace(
            op,
            operands=map_value(op.operands, self.tensor),
            results=map_value(op.results, self.tensor),
            attributes=attributes,
            body=body,
            notes={},
        )

    def _argument(
        self, name: str, value: Value, size_by_argument: Mapping[tuple[str, int], int]
    ) -> Value:
        if isinstance(value, tuple):
            return tuple(size_by_argument.get((name, i), item) for i, item in enumerate(value))
        return size_by_argument.get((name, -1), value)

    def _scale(self, op: Op, scale: Value) -> Value:
        """Return the scale of attention, updated if it is 1 / sqrt(width of a head)."""
        width = op.inputs[0].shape[-1] if op.inputs and op.inputs[0].rank == 4 else 0
        new = self.tensor(op.inputs[0]).shape[-1] if width else 0
        follows = new != width and isinstance(scale, float) and scale == 1 / sqrt(width)
        return 1 / sqrt(new) if follows else scale

    def _with_mean_divisor(self, op: Op, body: tuple[Op, ...]) -> tuple[Op, ...]:
        """Return the body of a mean's gradient, with its divisor updated to the new count."""
        algebra = Algebra(self._graph.dims)
        ops = []
        for old, new in zip(op.body, body, strict=True):
            counts = [
                _count(o, x, algebra)
                for o, x in (
                    (op, old),
                    (replace(op, operands=map_value(op.operands, self.tensor)), new),
                )
            ]
            if old.name == "aten.div" and old.attributes.get("other") == counts[0] and counts[1]:
                new = replace(new, attributes={**new.attributes, "other": counts[1]})
            ops.append(new)
        return tuple(ops)


def _count(scope: Op, op: Op, algebra: Algebra) -> int | None:
    """Return the number of elements of an op's input for each element of the scope's input."""
    if not (scope.inputs and op.inputs):
        return None
    op_count, scope_count = (algebra.times(*t.shape) for t in (op.inputs[0], scope.inputs[0]))
    return algebra.divide(op_count, scope_count)
