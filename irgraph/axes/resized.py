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
from irgraph.axes.views import Layout
from irgraph.ir.dim import Dim, Term
from irgraph.ir.edit import map_value
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor, oversized, tight

REMEMBERED = 8
"""Cached propagations, with their graphs: most graphs are resized more than once."""

Key = tuple[int, tuple[AxisOf, ...]]


class Growth:
    """What follows from the growth of some axes of one size: computed once for any new size."""

    def __init__(self, graph: Graph, seeds: Sequence[AxisOf]) -> None:
        self.graph = graph
        first = graph.by_name[seeds[0][0]].shape[seeds[0][1]]
        self.algebra = Algebra(graph.dims)
        self.factors, self.count = _coefficient(first)
        grown = self.algebra.make([(self.factors, self.count), ((*self.factors, GROWTH), STEP)])
        change = Propagation(graph, dict.fromkeys(seeds, grown))
        self.uses = change.uses
        self._steps = [(site.op, change.growth(spot), step) for site, spot, step in change.steps()]
        self.arguments = arguments(change)
        self.tensors = layouts(change, self.arguments)
        self._grains = list(self._found_grains())

    @property
    def multiple(self) -> int:
        """What new sizes must be multiples of: the dimensions in the axis's expression."""
        return self.algebra.make([(self.factors, 1)])

    def _found_grains(self) -> Iterator[tuple[int, Op | None]]:
        """Yield what the growth must be a multiple of, and the op that requires it."""
        for spot, size in self.arguments.items():
            yield _grain(size), self._op(spot)
        for name, layout in self.tensors.items():
            producer = self.uses.producer(self.graph.by_name[name])
            grain = lcm(*map(_grain, layout.shape))
            yield grain, producer.op if producer else None
        for op, grown, step in self._steps:
            yield lcm(_grain(grown), step), op

    def at(self, size: int) -> Graph:
        """Return the graph with the axis at a size, a multiple of ``multiple``.

        Raises ``FixedSizeError`` where an op would get sizes that are not whole.
        """
        more = size // int(self.multiple) - self.count
        for grain, op in self._grains:
            if more % grain:
                every = self.algebra.times(self.multiple, grain)
                message = f"{op.name if op else 'the step'} needs multiples of {every}"
                raise FixedSizeError(
                    op, f"{message}: {_nearest(size, more, grain, int(self.multiple))}"
                )
        found = _SizeCache(self.algebra, more)
        tensors = {name: self._tensor(name, layout, found) for name, layout in self.tensors.items()}
        self._keep_constants(tensors)
        given = {spot: found(size, self._op(spot)) for spot, size in self.arguments.items()}
        return _Rebuilt(self.graph, tensors, self._by_op(given)).graph()

    def _keep_constants(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse sizes at which a constant would have other elements than those known."""
        for declared in self.graph.tensors:
            made = tensors.get(declared.tensor.name, declared.tensor)
            if declared.value is not None and made.shape != declared.tensor.shape:
                name = declared.tensor.name
                raise FixedSizeError(None, f"%{name} is a constant: its value has one size")

    def _by_op(self, given: Mapping[Argument, int]) -> dict[int, dict[tuple[str, int], int]]:
        found: dict[int, dict[tuple[str, int], int]] = {}
        for (number, name, place), size in given.items():
            found.setdefault(id(self.uses.sites[number].op), {})[name, place] = size
        return found

    def _op(self, spot: Argument) -> Op:
        return self.uses.sites[spot[0]].op

    def _tensor(self, name: str, layout: Layout, found: _SizeCache) -> Tensor:
        old = self.graph.by_name[name]
        producer = self.uses.producer(old)
        op = producer.op if producer else None
        shape = tuple(found(size, op) for size in layout.shape)
        steps = tuple(found(step, op) for step in layout.strides)
        start = found(layout.offset, op)
        made = replace(old, shape=shape, strides=tight(shape, steps), offset=start)
        if problem := oversized(made):
            raise FixedSizeError(op, problem)
        return made


class _SizeCache:
    """Sizes at one growth of the axis, cached: most occur in many places."""

    def __init__(self, algebra: Algebra, more: int) -> None:
        self._algebra = algebra
        self._more = more
        self._known: dict[tuple[Term, ...], int] = {}

    def __call__(self, size: int, op: Op | None) -> int:
        """Return the value of a size; ``op`` is named in the error."""
        if not isinstance(size, Dim):
            return size
        known = self._known.get(size.terms)
        if known is None:
            found = self._algebra.at(size, self._more)
            if found is None or found < 0:
                raise FixedSizeError(op, f"{op.name if op else 'the step'} allows no such size")
            known = self._known[size.terms] = found
        return known


def _grain(size: int) -> int:
    """Return what the growth must be a multiple of, so that a size is whole."""
    linear = [count for names, count in terms_of(size) if names.count(GROWTH) == 1]
    return lcm(*(STEP // gcd(STEP, count) for count in linear))


def _nearest(size: int, more: int, grain: int, multiple: int) -> str:
    """Return the nearest valid sizes."""
    below, above = size - more % grain * multiple, size + -more % grain * multiple
    return f"nearest valid sizes: {below}, {above}" if below > 0 else f"nearest valid size: {above}"


def growth_of(graph: Graph, seeds: Sequence[AxisOf]) -> Growth:
    """Return what follows from the growth of some axes, cached for the latest graphs."""
    key = (id(graph), tuple(seeds))
    found = _remembered.pop(key, None)
    if found is None:
        found = Growth(graph, seeds)
    _remembered[key] = found
    while len(_remembered) > REMEMBERED:
        _remembered.popitem(last=False)
    return found


_remembered: OrderedDict[Key, Growth] = OrderedDict()


def _coefficient(size: int) -> tuple[tuple[str, ...], int]:
    """Return a size as a product of dimensions and a coefficient; sums count as numbers."""
    terms = terms_of(size)
    if len(terms) == 1:
        return terms[0]
    return (), int(size)


class _Rebuilt:
    """Replaces tensors and arguments; unchanged ops stay the same object."""

    def __init__(
        self,
        graph: Graph,
        tensors: Mapping[str, Tensor],
        given: Mapping[int, Mapping[tuple[str, int], int]],
    ) -> None:
        self._graph = graph
        self._tensors = tensors
        self._given = given

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
        """Return what a tensor becomes."""
        return self._tensors.get(tensor.name, tensor)

    def op(self, op: Op) -> Op:
        """Return an op over the new tensors, without its notes."""
        body = tuple(map(self.op, op.body))
        if op.name.startswith("autograd.MeanBackward"):
            body = self._averaged(op, body)
        given = self._given.get(id(op), {})
        touched = any(t.name in self._tensors for t in (*op.inputs, *op.outputs))
        inside = any(a is not b for a, b in zip(body, op.body, strict=True))
        if not (given or touched or inside or op.notes):
            return op
        if not (given or touched):
            return replace(op, body=body, notes={})
        attributes = {
            name: self._argument(name, map_value(value, self.tensor), given)
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

    def _argument(self, name: str, value: Value, given: Mapping[tuple[str, int], int]) -> Value:
        if isinstance(value, tuple):
            return tuple(given.get((name, i), item) for i, item in enumerate(value))
        return given.get((name, -1), value)

    def _scale(self, op: Op, scale: Value) -> Value:
        """Return the scale of attention, updated where it is 1 / sqrt(width of a head)."""
        width = op.inputs[0].shape[-1] if op.inputs and op.inputs[0].rank == 4 else 0
        new = self.tensor(op.inputs[0]).shape[-1] if width else 0
        follows = new != width and isinstance(scale, float) and scale == 1 / sqrt(width)
        return 1 / sqrt(new) if follows else scale

    def _averaged(self, op: Op, body: tuple[Op, ...]) -> tuple[Op, ...]:
        """Return the body of a mean's gradient, with its divisor updated to the new count."""
        algebra = Algebra(self._graph.dims)
        done = []
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
            done.append(new)
        return tuple(done)


def _count(scope: Op, op: Op, algebra: Algebra) -> int | None:
    """Return how many elements of an op's input correspond to one of the scope's input."""
    if not (scope.inputs and op.inputs):
        return None
    whole, mean = (algebra.times(*t.shape) for t in (op.inputs[0], scope.inputs[0]))
    return algebra.divided(whole, mean)
