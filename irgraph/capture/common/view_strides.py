"""Strides of views, for recordings with shapes only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from irgraph.capture.common.calls import Item
from irgraph.capture.common.identity import Handle
from irgraph.ir.tensor import row_major

Shape: TypeAlias = tuple[int, ...]
Strides: TypeAlias = tuple[int, ...]
Rule: TypeAlias = Callable[[Handle, Strides, Sequence[Item], Shape], Strides | None]
"""From the viewed tensor, its strides, the call's other arguments and the result's shape."""


def view_strides(name: str, values: Sequence[Item], shape: Shape) -> Strides | None:
    """Return the strides of a view operator's result, ``None`` if no rule applies.

    ``values`` are the call's arguments in schema order, the viewed tensor first.
    """
    rule = RULES.get(name)
    if rule is None or not values or not isinstance(values[0], Handle):
        return None
    source = values[0]
    strides = source.strides or row_major(source.shape)
    try:
        result_strides = rule(source, strides, values[1:], shape)
    except (IndexError, TypeError, ValueError):
        return None
    return (
        result_strides if result_strides is not None and len(result_strides) == len(shape) else None
    )


def _transpose(source: Handle, strides: Strides, rest: Sequence[Item], shape: Shape) -> Strides:
    order = list(strides)
    first, second = rest[0], rest[1]
    order[first], order[second] = order[second], order[first]
    return tuple(order)


def _expand(source: Handle, strides: Strides, rest: Sequence[Item], shape: Shape) -> Strides:
    new = len(shape) - len(strides)
    dims = zip(source.shape, strides, shape[new:], strict=True)
    return (0,) * new + tuple(0 if size != target else step for size, step, target in dims)


def _slice(source: Handle, strides: Strides, rest: Sequence[Item], shape: Shape) -> Strides:
    dim = rest[0] if rest else 0
    step = rest[3] if len(rest) > 3 else 1
    return tuple(s * step if i == dim % len(strides) else s for i, s in enumerate(strides))


def _select(source: Handle, strides: Strides, rest: Sequence[Item], shape: Shape) -> Strides:
    dim = rest[0] % len(strides)
    return strides[:dim] + strides[dim + 1 :]


def _unsqueeze(source: Handle, strides: Strides, rest: Sequence[Item], shape: Shape) -> Strides:
    dim = rest[0] % len(shape)
    step = strides[dim] * source.shape[dim] if dim < len(strides) else 1
    return (*strides[:dim], step, *strides[dim:])


def _squeeze(source: Handle, strides: Strides, rest: Sequence[Item], shape: Shape) -> Strides:
    dims = range(len(strides)) if not rest else [rest[0]] if isinstance(rest[0], int) else rest[0]
    squeezed = {d % len(strides) for d in dims if source.shape[d] == 1}
    return tuple(step for i, step in enumerate(strides) if i not in squeezed)


RULES: Mapping[str, Rule] = {
    "aten.t": lambda source, strides, rest, shape: strides[::-1],
    "aten.numpy_T": lambda source, strides, rest, shape: strides[::-1],
    "aten.transpose": _transpose,
    "aten.permute": lambda source, strides, rest, shape: tuple(strides[d] for d in rest[0]),
    "aten.expand": _expand,
    "aten.slice": _slice,
    "aten.narrow": lambda source, strides, rest, shape: strides,
    "aten.select": _select,
    "aten.unsqueeze": _unsqueeze,
    "aten.squeeze": _squeeze,
    "aten.as_strided": lambda source, strides, rest, shape: tuple(rest[1]),
    "aten._reshape_alias": lambda source, strides, rest, shape: tuple(rest[1]),
    "aten.detach": lambda source, strides, rest, shape: strides,
    "aten.alias": lambda source, strides, rest, shape: strides,
    "aten.split": lambda source, strides, rest, shape: strides,
    "aten.split_with_sizes": lambda source, strides, rest, shape: strides,
    "aten.chunk": lambda source, strides, rest, shape: strides,
}
"""Rule for the strides of each view operator; other views are assumed to be contiguous."""
