"""Elements read and written by lists of indices, and numbers read by the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.kinds.lookups import axes_of_indices
from irgraph.ops.meaning import IN_FIRST, OPAQUE, Axes, Axis, Meaning
from irgraph.ops.operator import Trait, operators
from irgraph.ops.patterns import all_results, linear_sets, new_results
from irgraph.ops.shapes import aligned, broadcast_axes, broadcast_shape, letters, opaque, replaced

T = TypeVar("T")


class _Lookup:
    """The axes of a tensor, of lists of indices into some of its axes, and of those elements.

    Attributes:
        source: the axes of the tensor.
        lists: the axes of each list.
        elements: the axes of the elements.
        shape: the sizes of the elements.
        indexed: letters of the axes that are indexed.
        places: letters of the lists.
    """

    def __init__(
        self,
        source: Tensor,
        indices: Sequence[Tensor | None],
    ) -> None:
        tensors = [tensor for tensor in indices if tensor is not None]
        positions = [i for i, tensor in enumerate(indices) if tensor is not None]
        shape = broadcast_shape(tensors)
        self.source = letters(source.rank)
        self.places = letters(len(shape), "i")
        self.lists = [aligned(tensor, shape, "i") for tensor in tensors]
        self.indexed = frozenset(self.source[i] for i in positions)
        remaining = [i for i in range(source.rank) if i not in positions]
        # the axes of adjacent lists replace theirs; of others they come first
        is_adjacent = positions[-1] - positions[0] == len(positions) - 1
        first = positions[0] if is_adjacent else 0
        before = [i for i in remaining if i < first]
        after = [i for i in remaining if i >= first]
        self.elements = (
            *_items(self.source, before),
            *self.places,
            *_items(self.source, after),
        )
        self.shape = (
            *_items(source.shape, before),
            *shape,
            *_items(source.shape, after),
        )


def _items(items: Sequence[T], indices: Sequence[int]) -> list[T]:
    return [items[index] for index in indices]


def _lookup(call: Call) -> _Lookup | None:
    """Return the axes of a call with lists of indices; ``None`` if they are masks."""
    source = call.tensor("self")
    indices = call.arguments.get("indices")
    if source is None or not isinstance(indices, tuple):
        return None
    lists = [index if isinstance(index, Tensor) else None for index in indices]
    types = {index.dtype for index in lists if index is not None}
    if len(lists) > source.rank or not types or types & {"bool", "u8"}:
        return None
    return _Lookup(source, lists)


def _indexed(call: Call) -> Meaning | None:
    """Return the meaning of ``index``: elements at places of lists."""
    lookup = _lookup(call)
    if lookup is None:
        return None
    return Meaning(
        operands=(lookup.source, *lookup.lists),
        results=new_results(call, lookup.elements),
        mixed=lookup.indexed,
        linear=IN_FIRST,
    )


def _update(call: Call) -> Meaning | None:
    """Return the meaning of ``index_put``: values replace elements, or are added to them."""
    lookup = _lookup(call)
    values = call.tensor("values")
    if lookup is None or values is None or values.rank > len(lookup.shape):
        return None
    of_values = broadcast_axes(values, lookup.shape, lookup.elements)
    mixed = lookup.indexed
    if not call.flag("accumulate"):
        mixed = mixed.union(lookup.places)
    return Meaning(
        operands=(lookup.source, *lookup.lists, of_values),
        results=all_results(call, lookup.source),
        mixed=mixed,
        linear=linear_sets(call, ("self values",)),
    )


def _scattered(call: Call) -> Meaning | None:
    """Return the meaning of ``scatter``: each index writes along one axis in its position.

    Splitting indices gives sums only if values are added.
    """
    target = call.tensor("self")
    indices = call.tensor("index")
    source = call.tensor("src")
    if target is None or indices is None or target.rank != indices.rank:
        return None
    axes = letters(target.rank)
    index = call.axis("dim", target.rank)
    of_indices = axes_of_indices(target, indices, index)
    operands: list[Axes] = [axes, of_indices]
    if source is not None:
        if source.rank != indices.rank:
            return None
        operands.append(_common_axes(of_indices, indices, source))
    if len(operands) != len(call.inputs):
        return None
    adds = "add" in call.op.base
    has_values = source is not None and "reduce" not in call.arguments
    places = frozenset(of_indices).difference(axes)
    mixed = frozenset(axes).difference(of_indices)
    return Meaning(
        operands=tuple(operands),
        results=all_results(call, axes),
        mixed=mixed if adds else mixed | places,
        linear=linear_sets(call, ("self src",)) if adds or has_values else (),
        # other axes of indices may be shorter than the target's
        fixed=places - {f"i{index}"},
    )


def _common_axes(axes: Axes, tensor: Tensor, other: Tensor) -> Axes:
    """Return the axes of a tensor in which another has the same size, the rest as opaque."""
    common: list[Axis] = []
    for axis, size, other_size in zip(axes, tensor.shape, other.shape, strict=True):
        common.append(axis if size == other_size else OPAQUE)
    return tuple(common)


def _written_along(call: Call) -> Meaning | None:
    """Return the meaning of ``index_add``, ``index_copy`` and ``index_fill``, along one axis."""
    target = call.tensor("self")
    indices = call.tensor("index")
    if target is None or indices is None:
        return None
    if indices.rank != 1 or not target.rank:
        return None
    axes = letters(target.rank)
    index = call.axis("dim", target.rank)
    operands: list[Axes] = [axes, ("i",)]
    has_source = call.tensor("source") is not None
    if has_source:
        operands.append(replaced(axes, index, "i"))
    elif call.tensor("value") is not None:
        operands.append(())
    is_linear = has_source and "reduce" not in call.arguments
    mixed = {axes[index]}
    if "index_add" not in call.op.base:
        mixed.add("i")
    return Meaning(
        operands=tuple(operands),
        results=all_results(call, axes),
        mixed=frozenset(mixed),
        linear=linear_sets(call, ("self source",)) if is_linear else (),
    )


def _number(call: Call) -> Meaning:
    """Return the meaning of an op that gives the host a number."""
    operands = tuple(map(opaque, call.inputs))
    return Meaning(operands, ())


OPERATORS = {
    **operators(_indexed, "index", traits=[Trait.INDEXED]),
    **operators(_indexed, "_unsafe_index"),
    **operators(_update, "index_put index_put_ _index_put_impl_", traits=[Trait.INDEXED]),
    **operators(_update, "_unsafe_index_put"),
    **operators(_scattered, "scatter scatter_add scatter_reduce", in_place=True),
    **operators(_written_along, "index_add index_copy index_fill index_reduce", in_place=True),
    **operators(_number, "item _local_scalar_dense is_nonzero equal", traits=[Trait.HOST_READ]),
}
