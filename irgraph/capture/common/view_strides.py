"""Strides of views, for recordings with shapes only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from irgraph.capture.common.calls import Item
from irgraph.capture.common.identity import Handle
from irgraph.ir.op import Op
from irgraph.ir.schema import schemas_of
from irgraph.ir.tensor import Tensor, row_major
from irgraph.ops.book import meaning_of
from irgraph.ops.strides import Layout, Numbers, View, merges_gaps

Shape = tuple[int, ...]

COPIES = frozenset(("aten.reshape", "aten.flatten", "aten.to", "aten.contiguous"))
"""Ops whose result is a view or a copy, which recordings leave open."""

EXPLICIT = {"aten.as_strided": 2, "aten._reshape_alias": 2}
"""Ops whose strides are an argument, and its position."""


def view_strides(name: str, values: Sequence[Item], shapes: Sequence[Shape]) -> list[Shape | None]:
    """Return the strides of a view operator's results, ``None`` for those that are not known.

    ``values`` are the call's arguments in schema order, the viewed tensor first; ``shapes`` are
    the shapes of its results.
    """
    unknown: list[Shape | None] = [None] * len(shapes)
    if not values or not isinstance(values[0], Handle):
        return unknown
    if name in EXPLICIT:
        return [_explicit(values[EXPLICIT[name] :], shape) for shape in shapes]
    if name in COPIES or not _returns_views(name):
        return unknown
    source = values[0]
    results = tuple(_tensor(f"r{i}", source.dtype, shape) for i, shape in enumerate(shapes))
    op = Op(name, tuple(map(_operand, values)), results)
    meaning = meaning_of(op)
    if meaning is None:
        return unknown
    layout = Layout(source.shape, source.strides or row_major(source.shape))
    if merges_gaps(meaning, layout):
        return unknown
    views = View(meaning, layout, Numbers()).layouts(shapes, 1)
    return [view.strides for view in views]


def _explicit(arguments: Sequence[Item], shape: Shape) -> Shape | None:
    """Return the strides among arguments, ``None`` if they were not recorded."""
    if not arguments or not isinstance(arguments[0], list | tuple):
        return None
    strides = tuple(arguments[0])
    return strides if len(strides) == len(shape) else None


def _returns_views(name: str) -> bool:
    returns = [returned for schema in schemas_of(name) for returned in schema.returns]
    return any(returned.alias and not returned.written for returned in returns)


def _operand(value: Item) -> Any:  # noqa: ANN401  (a value of the IR)
    if isinstance(value, Handle):
        return _tensor(f"h{id(value)}", value.dtype, value.shape)
    return tuple(map(_operand, value)) if isinstance(value, list | tuple) else value


def _tensor(name: str, dtype: str, shape: Shape) -> Tensor:
    return Tensor(name, dtype, shape, name)
