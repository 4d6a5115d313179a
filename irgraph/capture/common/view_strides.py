"""Strides of views, for recordings with shapes only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from irgraph.capture.common.calls import Item
from irgraph.capture.common.identity import Handle
from irgraph.ir.op import Op
from irgraph.ir.schema import schemas_of
from irgraph.ir.tensor import Tensor, row_major
from irgraph.ops.book import meaning_of, names_with
from irgraph.ops.operator import Trait
from irgraph.ops.strides import Layout, Numbers, View, merges_gaps

Shape = tuple[int, ...]


def view_strides(name: str, values: Sequence[Item], shapes: Sequence[Shape]) -> list[Shape | None]:
    """Return the strides of a view operator's results, ``None`` for those that are not known.

    ``values`` are the call's arguments in schema order, the viewed tensor first; ``shapes`` are
    the shapes of its results.
    """
    unknown: list[Shape | None] = [None] * len(shapes)
    if not values or not isinstance(values[0], Handle):
        return unknown
    # recordings leave open whether a copy was made
    if name in names_with(Trait.VIEW_OR_COPY) or not _returns_views(name):
        return unknown
    position = _stride_position(name)
    if position is not None:
        return [_explicit(values[position:], shape) for shape in shapes]
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


def _stride_position(name: str) -> int | None:
    """Return the position of the argument with a view's strides, ``None`` if it has none."""
    names = [argument.name for argument in schemas_of(name)[0].arguments]
    return names.index("stride") if "stride" in names else None


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
