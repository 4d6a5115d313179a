"""Ops without a rule: torch's meta device is asked which sizes must change together."""

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
from irgraph.shapes import ShapeError, plain_sizes

Place = tuple[str, int, int]
"""``in`` or ``out``, which tensor, which axis; or an argument's name, 0, which item of a list."""

Change = tuple[frozenset[Place], tuple[tuple[Place, Fraction], ...]]
"""Places that change together, and the share of that change in each result."""

PLAIN = Algebra({})


def linked_axes(site: ConstrainedOp, place: Place, schemas: Sequence[str]) -> Change | None:
    """Return what must change with one place of an op; ``None`` where nothing allows it.

    For a result: the places of operands and arguments that change it by the same amount.
    """
    shown = tuple((t.dtype, tuple(map(int, t.shape)), t.strides) for t in site.inputs)
    made = tuple(tuple(map(int, t.shape)) for t in site.outputs)
    plain = tuple((k, _plain(v)) for k, v in site.op.attributes.items())
    return _together(_Probe(site.op, tuple(schemas), (site.op.name, shown, made, plain)), place)


def agrees(site: ConstrainedOp, sizes: Mapping[Place, int], schemas: Sequence[str]) -> bool:
    """Return whether torch's results for resized operands and arguments have the given sizes."""
    asked = _Probe(site.op, tuple(schemas), None)
    steps = {place: size - asked.size(place) for place, size in sizes.items()}
    base, then = asked.shapes({}), asked.shapes({p: s for p, s in steps.items() if p[0] != "out"})
    if base is None or then is None:
        return False
    grown = {
        ("out", i, j): b - a
        for i, shapes in enumerate(zip(base, then, strict=True))
        for j, (a, b) in enumerate(zip(*shapes, strict=True))
    }
    return all(steps.get(place, 0) == step for place, step in grown.items()) and all(
        grown.get(place, 0) == step for place, step in steps.items() if place[0] == "out"
    )


def _plain(value: Value) -> object:
    if isinstance(value, Tensor):
        return "tensor"
    return tuple(map(_plain, value)) if isinstance(value, tuple) else (type(value).__name__, value)


class _Probe:
    """An op to be asked about; equal where names, types and arguments are."""

    def __init__(self, op: Op, schemas: tuple[str, ...], key: object) -> None:
        self.op, self.schemas, self._key = op, schemas, key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Probe) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def shapes(self, steps: Mapping[Place, int]) -> list[tuple[int, ...]] | None:
        """Return the shapes of the results with some places larger; ``None``: torch refuses."""
        op = _changed(self.op, steps)
        try:
            results = plain_sizes(op, self.schemas, {})
        except ShapeError:
            return None
        pairs = zip(results, self.op.results, strict=False)
        return [tensor.shape for tensor in _opened(a for a, said in pairs if said is not None)]

    def size(self, place: Place) -> int:
        kind, which, axis = place
        if kind in ("in", "out"):
            return int((self.op.inputs if kind == "in" else self.op.outputs)[which].shape[axis])
        value = self.op.attributes[kind]
        found = value[axis] if isinstance(value, tuple) else value
        return int(found) if isinstance(found, int) else -1

    def alike(self, size: int) -> tuple[list[Place], list[Place]]:
        """Return the axes of operands, and the arguments, that have one size."""
        held = self.op.inputs
        places = [("in", i, a) for i, t in enumerate(held) for a in range(t.rank)]
        found: list[Place] = []
        for name, value in self.op.attributes.items():
            items = enumerate(value) if isinstance(value, tuple) else [(-1, value)]
            found += [
                (name, 0, i) for i, v in items if isinstance(v, int) and not isinstance(v, bool)
            ]
        return (
            [place for place in places if self.size(place) == size],
            [place for place in found if self.size(place) == size],
        )


@lru_cache(maxsize=1 << 14)
def _together(asked: _Probe, place: Place) -> Change | None:
    base = asked.shapes({})
    if base is None:
        return None
    axes, arguments = asked.alike(asked.size(place))
    wanted = place if place[0] == "out" else None
    lone = [] if wanted else [place]
    starts = [lone, *([*lone, *some] for some in (axes, [*axes, *arguments], arguments))]
    starts += [[*lone, *axes, argument] for argument in arguments]
    for start in starts:
        chosen = set(start)
        if chosen and _fits(asked, chosen, wanted, base):
            return _smallest(asked, chosen, place, base)
    return None


def _fits(
    asked: _Probe, chosen: set[Place], wanted: Place | None, base: list[tuple[int, ...]]
) -> bool:
    shapes = asked.shapes(dict.fromkeys(chosen, STEP))
    if shapes is None or [*map(len, shapes)] != [*map(len, base)]:
        return False
    return wanted is None or shapes[wanted[1]][wanted[2]] == base[wanted[1]][wanted[2]] + STEP


def _smallest(
    asked: _Probe, chosen: set[Place], place: Place, base: list[tuple[int, ...]]
) -> Change | None:
    """Drop what need not change, arguments first."""
    wanted = place if place[0] == "out" else None
    for candidate in sorted(chosen - {place}, key=lambda p: p[0] == "in"):
        fewer = chosen - {candidate}
        if fewer and _fits(asked, fewer, wanted, base):
            chosen = fewer
    once, twice = (asked.shapes(dict.fromkeys(chosen, step)) for step in (STEP, 2 * STEP))
    if once is None or twice is None:
        return None
    shares = []
    for i, (a, b, c) in enumerate(zip(base, once, twice, strict=True)):
        for j, size in enumerate(a):
            if c[j] - b[j] != b[j] - size:
                return None
            if b[j] != size:
                shares.append((("out", i, j), Fraction(b[j] - size, STEP)))
    return frozenset(chosen), tuple(shares)


def _changed(op: Op, steps: Mapping[Place, int]) -> Op:
    """Return an op with plain sizes, some of them larger."""
    count = iter(range(len(op.inputs)))

    def tensor(old: Tensor) -> Tensor:
        which = next(count)
        grown = {a: s for (kind, i, a), s in steps.items() if kind == "in" and i == which}
        shape = tuple(int(size) + grown.get(i, 0) for i, size in enumerate(old.shape))
        strides = old.strides
        if strides is not None and grown:
            strides = tuple(dense_strides(old, shape, PLAIN) or _ordered(strides, shape))
        return replace(old, shape=shape, strides=strides)

    def value(old: Value, name: str, place: int = -1) -> Value:
        if isinstance(old, Tensor):
            return tensor(old)
        if isinstance(old, tuple):
            return tuple(value(item, name, i) for i, item in enumerate(old))
        step = steps.get((name, 0, place))
        return int(old) + step if step and isinstance(old, int) else old

    operands = tuple(value(v, "") for v in op.operands)
    attributes = {name: value(v, name) for name, v in op.attributes.items()}
    return replace(op, operands=operands, attributes=attributes, results=())


def _ordered(strides: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return strides in the same order with room for a larger shape; zero strides stay."""
    found = [0] * len(shape)
    step = 1
    for i in sorted(range(len(shape)), key=lambda i: strides[i]):
        if strides[i]:
            found[i] = step
            step *= shape[i]
    return found


def _opened(results: Iterable[Result]) -> list[Tensor]:
    found: list[Tensor] = []
    for result in results:
        if isinstance(result, Tensor):
            found.append(result)
        elif isinstance(result, tuple):
            found += result
    return found
