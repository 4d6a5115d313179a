"""Constraints of ops without a rule: torch's meta device determines the linked sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

from msgspec.structs import replace

from irgraph.axes.algebra import STEP, Algebra
from irgraph.axes.relations import ConstrainedOp
from irgraph.axes.views import dense_strides
from irgraph.ir.op import Op, Result, Value
from irgraph.ir.tensor import Tensor
from irgraph.ops.inference import ShapeError, torch_results

SizeIndex = tuple[str, int, int]
"""Index of a size: ``in`` or ``out``, tensor, axis; or an argument's name, 0, list index or -1."""

LinkedChange = tuple[frozenset[SizeIndex], tuple[tuple[SizeIndex, Fraction], ...]]
"""Sizes that change together, and the fraction of that change in each result."""

PLAIN = Algebra({})


def linked_axes(
    site: ConstrainedOp, index: SizeIndex, schemas: Sequence[str]
) -> LinkedChange | None:
    """Return the sizes that must change with a size of an op, or ``None`` if torch allows none.

    For a result: the sizes of operands and arguments that change it by the same amount.
    """
    input_types = tuple((t.dtype, tuple(map(int, t.shape)), t.strides) for t in site.inputs)
    output_shapes = tuple(tuple(map(int, t.shape)) for t in site.outputs)
    attributes = tuple((k, _attribute_key(v)) for k, v in site.op.attributes.items())
    return _linked_indices(
        _Probe(site.op, tuple(schemas), (site.op.name, input_types, output_shapes, attributes)),
        index,
    )


def agrees(site: ConstrainedOp, sizes: Mapping[SizeIndex, int], schemas: Sequence[str]) -> bool:
    """Return whether torch's results for resized operands and arguments have the given sizes."""
    probe = _Probe(site.op, tuple(schemas), None)
    steps = {index: size - probe.size(index) for index, size in sizes.items()}
    base_shapes, grown_shapes = (
        probe.shapes({}),
        probe.shapes({p: s for p, s in steps.items() if p[0] != "out"}),
    )
    if base_shapes is None or grown_shapes is None:
        return False
    growth_by_index = {
        ("out", i, j): b - a
        for i, shapes in enumerate(zip(base_shapes, grown_shapes, strict=True))
        for j, (a, b) in enumerate(zip(*shapes, strict=True))
    }
    return all(steps.get(index, 0) == step for index, step in growth_by_index.items()) and all(
        growth_by_index.get(index, 0) == step for index, step in steps.items() if index[0] == "out"
    )


def _attribute_key(value: Value) -> object:
    if isinstance(value, Tensor):
        return "tensor"
    return (
        tuple(map(_attribute_key, value))
        if isinstance(value, tuple)
        else (type(value).__name__, value)
    )


class _Probe:
    """An op to be probed; equal if names, types and arguments are."""

    def __init__(self, op: Op, schemas: tuple[str, ...], key: object) -> None:
        self.op, self.schemas, self._key = op, schemas, key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Probe) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def shapes(self, steps: Mapping[SizeIndex, int]) -> list[tuple[int, ...]] | None:
        """Return the shapes of the results with some sizes larger, or ``None`` if torch refuses."""
        op = _enlarge(self.op, steps)
        try:
            results = torch_results(op, self.schemas, {})
        except ShapeError:
            return None
        pairs = zip(results, self.op.results, strict=False)
        return [
            tensor.shape for tensor in _flatten(a for a, original in pairs if original is not None)
        ]

    def size(self, index: SizeIndex) -> int:
        kind, number, axis = index
        if kind in ("in", "out"):
            return int((self.op.inputs if kind == "in" else self.op.outputs)[number].shape[axis])
        value = self.op.attributes[kind]
        item = value[axis] if isinstance(value, tuple) else value
        return int(item) if isinstance(item, int) else -1

    def indices_of_size(self, size: int) -> tuple[list[SizeIndex], list[SizeIndex]]:
        """Return the axes of operands, and the arguments, that have one size."""
        inputs = self.op.inputs
        axes = [("in", i, a) for i, t in enumerate(inputs) for a in range(t.rank)]
        arguments: list[SizeIndex] = []
        for name, value in self.op.attributes.items():
            items = enumerate(value) if isinstance(value, tuple) else [(-1, value)]
            arguments += [
                (name, 0, i) for i, v in items if isinstance(v, int) and not isinstance(v, bool)
            ]
        return (
            [index for index in axes if self.size(index) == size],
            [index for index in arguments if self.size(index) == size],
        )


@lru_cache(maxsize=1 << 14)
def _linked_indices(probe: _Probe, index: SizeIndex) -> LinkedChange | None:
    base = probe.shapes({})
    if base is None:
        return None
    axes, arguments = probe.indices_of_size(probe.size(index))
    result_index = index if index[0] == "out" else None
    lone = [] if result_index else [index]
    starts = [lone, *([*lone, *group] for group in (axes, [*axes, *arguments], arguments))]
    starts += [[*lone, *axes, argument] for argument in arguments]
    for start in starts:
        indices = set(start)
        if indices and _fits(probe, indices, result_index, base):
            return _smallest_change(probe, indices, index, base)
    return None


def _fits(
    probe: _Probe,
    indices: set[SizeIndex],
    result_index: SizeIndex | None,
    base: list[tuple[int, ...]],
) -> bool:
    shapes = probe.shapes(dict.fromkeys(indices, STEP))
    if shapes is None or [*map(len, shapes)] != [*map(len, base)]:
        return False
    return (
        result_index is None
        or shapes[result_index[1]][result_index[2]] == base[result_index[1]][result_index[2]] + STEP
    )


def _smallest_change(
    probe: _Probe, indices: set[SizeIndex], index: SizeIndex, base: list[tuple[int, ...]]
) -> LinkedChange | None:
    """Return the change without sizes that need not change, arguments dropped first."""
    result_index = index if index[0] == "out" else None
    for candidate in sorted(indices - {index}, key=lambda p: p[0] == "in"):
        fewer = indices - {candidate}
        if fewer and _fits(probe, fewer, result_index, base):
            indices = fewer
    once, twice = (probe.shapes(dict.fromkeys(indices, step)) for step in (STEP, 2 * STEP))
    if once is None or twice is None:
        return None
    shares = []
    for i, (a, b, c) in enumerate(zip(base, once, twice, strict=True)):
        for j, size in enumerate(a):
            if c[j] - b[j] != b[j] - size:
                return None
            if b[j] != size:
                shares.append((("out", i, j), Fraction(b[j] - size, STEP)))
    return frozenset(indices), tuple(shares)


def _enlarge(op: Op, steps: Mapping[SizeIndex, int]) -> Op:
    """Return an op with plain sizes, some of them larger."""
    numbers = iter(range(len(op.inputs)))

    def tensor(old: Tensor) -> Tensor:
        number = next(numbers)
        growth_by_axis = {a: s for (kind, i, a), s in steps.items() if kind == "in" and i == number}
        shape = tuple(int(size) + growth_by_axis.get(i, 0) for i, size in enumerate(old.shape))
        strides = old.strides
        if strides is not None and growth_by_axis:
            strides = tuple(dense_strides(old, shape, PLAIN) or _strides_in_order(strides, shape))
        return replace(old, shape=shape, strides=strides)

    def value(old: Value, name: str, index: int = -1) -> Value:
        if isinstance(old, Tensor):
            return tensor(old)
        if isinstance(old, tuple):
            return tuple(value(item, name, i) for i, item in enumerate(old))
        step = steps.get((name, 0, index))
        return int(old) + step if step and isinstance(old, int) else old

    operands = tuple(value(v, "") for v in op.operands)
    attributes = {name: value(v, name) for name, v in op.attributes.items()}
    return replace(op, operands=operands, attributes=attributes, results=())


def _strides_in_order(strides: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return strides in the same order with room for a larger shape; zero strides are unchanged."""
    new_strides = [0] * len(shape)
    step = 1
    for i in sorted(range(len(shape)), key=lambda i: strides[i]):
        if strides[i]:
            new_strides[i] = step
            step *= shape[i]
    return new_strides


def _flatten(results: Iterable[Result]) -> list[Tensor]:
    tensors: list[Tensor] = []
    for result in results:
        if isinstance(result, Tensor):
            tensors.append(result)
        elif isinstance(result, tuple):
            tensors += result
    return tensors
