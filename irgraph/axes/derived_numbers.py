"""Numbers among arguments that a program seems to have computed from a size.

Sizes among arguments follow an axis; a factor such as ``0.1 / 97`` (label smoothing over 97
classes) or ``2 / 96`` (the gradient of a variance) is a plain number in a captured step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isclose, log

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.schema import bind, resolve

MIN_SIZE = 5
"""Smallest size that is recognised in a number: constants are small."""

SMALL = 0.1
"""Number below which small fractions are rare, such as the factor 1 / (1 - p) of a dropout."""

SCALAR = "Scalar"
"""Type of arguments that are numbers to compute with."""

MAX_DIGITS = 4
"""Maximum number of digits of a number that a program writes out."""

TOLERANCE = 1e-13
"""Relative rounding error of a number that was computed from a size."""


def derived_numbers(graph: Graph, resized: Graph) -> tuple[str, ...]:
    """Return the numbers of a resized graph that seem to be computed from a size it had before."""
    sizes = _changed_sizes(graph, resized)
    numbers: dict[str, None] = {}
    for old, new in zip(graph.leaves(), resized.leaves(), strict=True):
        for name, value in old.attributes.items():
            size = _origin(old, name, value, sizes)
            if size and new.attributes.get(name) == value:
                numbers[f"{old.name}: {name} = {value} seems to be computed from {size}"] = None
    return tuple(numbers)


def _changed_sizes(graph: Graph, resized: Graph) -> list[int]:
    """Return the sizes of axes and tensors that changed, axes first."""
    axes: dict[int, None] = {}
    totals: dict[int, None] = {}
    for name, old in graph.by_name.items():
        new = resized.by_name[name]
        if new is old or new.shape == old.shape:
            continue
        axes.update((int(a), None) for a, b in zip(old.shape, new.shape, strict=True) if a != b)
        totals[int(old.numel)] = None
    return [size for size in {**axes, **totals} if size >= MIN_SIZE]


def _origin(op: Op, name: str, value: Value, sizes: Sequence[int]) -> int:
    """Return the size from which a number of a call seems to be computed, 0 if there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    if isinstance(value, float) and not value.is_integer():
        return 0 if _is_constant(value) else next(filter(partial(_explains, value), sizes), 0)
    size = next((size for size in sizes if value in (size, size - 1)), 0)
    return size if size and _is_scalar(op, name) else 0


def _is_scalar(op: Op, name: str) -> bool:
    """Return whether an argument is a number to compute with, not a size or an index."""
    schema = resolve(op)
    arguments = bind(schema, op) if schema else ()
    return any(argument.name == name and argument.type == SCALAR for argument, _ in arguments)


def _is_constant(value: float) -> bool:
    """Return whether a program may write a number out: a short one, or a small fraction."""
    factors = range(2, 10) if abs(value) > SMALL else ()
    return _is_short(value, MAX_DIGITS) or any(
        _is_short(value * factor, MAX_DIGITS - 1) for factor in factors
    )


def _explains(value: float, size: int) -> bool:
    """Return whether a number is a short one after a usual function of a size is undone."""
    is_root = isclose(value * value, size, rel_tol=TOLERANCE)
    is_inverse_root = isclose(value * value * size, 1, rel_tol=TOLERANCE)
    if is_root or is_inverse_root:
        return True
    plain_numbers = (value * size, value * (size - 1), value * log(size), value / log(size))
    return any(_is_short(plain, MAX_DIGITS - 1) for plain in plain_numbers)


def _is_short(value: float, digits: int) -> bool:
    """Return whether a number has few significant digits, but for an error of rounding."""
    return isclose(value, float(f"{value:.{digits - 1}e}"), rel_tol=TOLERANCE)
