"""Elements read and written by lists of indices, and numbers read by the host."""

from __future__ import annotations

from collections.abc import Sequence

from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.meaning import OPAQUE, Axes, Meaning, Result
from irgraph.ops.operator import Trait, operators
from irgraph.ops.patterns import linear_sets
from irgraph.ops.shapes import aligned, broadcast_axes, broadcast_shape, letters, replaced


class _Lookup:
    """The axes of a tensor, of lists of indices into some of its axes, and of those elements.

    Attributes:
        source: the axes of the tensor.
        lists: the axes of each list.
        elements: the axes of the elements.
        indexed: letters of the axes that are indexed.
        places: letters of the lists.
    """

    def __init__(self, source: Tensor, indices: Sequence[Tensor | None]) -> None:
        tensors = [tensor for tensor in indices if tensor is not None]
        shape = broadcast_shape(tensors)
        self.source = letters(source.rank)
        self.places = letters(len(shape), "i")
        self.lists = [aligned(tensor, shape, "i") for tensor in tensors]
        positions = [i for i, tensor in enumerate(indices) if tensor is not None]
        self.indexed = frozenset(f"d{i}" for i in positions)
        remaining = [i for i in range(source.rank) if i not in positions]
        # the axes of adjacent lists replace theirs; of others they come first
        first = positions[0] if positions[-1] - positions[0] == len(positions) - 1 else 0
        before = [self.source[i] for i in remaining if i < first]
        after = [self.source[i] for i in remaining if i >= first]
        self.elements: Axes = (*before, *self.places, *after)


def _lookup(call: Call) -> _Lookup | None:
    """Return the axes of a call with lists of indices; ``None`` if they are masks."""
    source, indices = call.tensor("self"), call.arguments.get("indices")
    if source is None or not isinstance(indices, tuple) or len(indices) > source.rank:
        return None
    tensors = [index for index in indices if isinstance(index, Tensor)]
    if not tensors or any(tensor.dtype in ("bool", "u8") for tensor in tensors):
        return None
    return _Lookup(source, [t if isinstance(t, Tensor) else None for t in indices])


def _indexed(call: Call) -> Meaning | None:
    """Return the meaning of ``index``: elements at places of lists."""
    lookup = _lookup(call)
    if lookup is None:
        return None
    return Meaning(
        operands=(lookup.source, *lookup.lists),
        results=(Result(lookup.elements),) * len(call.outputs),
        mixed=lookup.indexed,
        linear=(frozenset({0}),),
    )


def _update(call: Call) -> Meaning | None:
    """Return the meaning of ``index_put``: values replace elements, or are added to them."""
    lookup, values = _lookup(call), call.tensor("values")
    if lookup is None or values is None:
        return None
    sizes = {
        axis: size
        for axes, tensor in zip(lookup.lists, call.inputs[1:], strict=False)
        for axis, size in zip(axes, tensor.shape, strict=True)
    }
    sizes |= dict(zip(lookup.source, call.inputs[0].shape, strict=True))
    shape = [sizes.get(axis, 1) for axis in lookup.elements]
    if values.rank > len(shape):
        return None
    adds = call.flag("accumulate")
    return Meaning(
        operands=(lookup.source, *lookup.lists, broadcast_axes(values, shape, lookup.elements)),
        results=(Result(lookup.source),) * (len(call.outputs) + len(call.written)),
        mixed=lookup.indexed | (frozenset() if adds else frozenset(map(str, lookup.places))),
        linear=linear_sets(call, ("self values",)),
    )


def _scattered(call: Call) -> Meaning | None:
    """Return the meaning of ``scatter``: each index writes along one axis in its position.

    Splitting indices gives sums only if values are added.
    """
    target, indices = call.tensor("self"), call.tensor("index")
    if target is None or indices is None or target.rank != indices.rank:
        return None
    axes = letters(target.rank)
    index = call.axis("dim", target.rank)
    pairs = zip(axes, target.shape, indices.shape, strict=True)
    of_indices: Axes = tuple(
        axis if i != index and size == other else f"i{i}"
        for i, (axis, size, other) in enumerate(pairs)
    )
    source = call.tensor("src")
    operands: list[Axes] = [axes, of_indices]
    if source is not None:
        if source.rank != indices.rank:
            return None
        pairs_of_source = zip(of_indices, indices.shape, source.shape, strict=True)
        operands.append(tuple(a if n == m else OPAQUE for a, n, m in pairs_of_source))
    if len(operands) != len(call.inputs):
        return None
    adds = "add" in call.op.base
    different = {str(a) for a, b in zip(axes, of_indices, strict=True) if a != b}
    places = frozenset(map(str, of_indices)) - frozenset(map(str, axes))
    is_linear = adds or (source is not None and "reduce" not in call.arguments)
    return Meaning(
        operands=tuple(operands),
        results=(Result(axes),) * (len(call.outputs) + len(call.written)),
        mixed=frozenset(different) | (frozenset() if adds else places),
        linear=linear_sets(call, ("self src",)) if is_linear else (),
        # other axes of indices may be shorter than the target's
        fixed=frozenset(letter for letter in places if letter != f"i{index}"),
    )


def _written_along(call: Call) -> Meaning | None:
    """Return the meaning of ``index_add``, ``index_copy`` and ``index_fill``, along one axis."""
    target, indices = call.tensor("self"), call.tensor("index")
    if target is None or indices is None or indices.rank != 1 or not target.rank:
        return None
    axes = letters(target.rank)
    index = call.axis("dim", target.rank)
    operands: list[Axes] = [axes, ("i",)]
    if call.tensor("source") is not None:
        operands.append(replaced(axes, index, "i"))
    elif call.tensor("value") is not None:
        operands.append(())
    adds = "index_add" in call.op.base
    is_linear = call.tensor("source") is not None and "reduce" not in call.arguments
    return Meaning(
        operands=tuple(operands),
        results=(Result(axes),) * (len(call.outputs) + len(call.written)),
        mixed=frozenset({f"d{index}"}) | (frozenset() if adds else frozenset({"i"})),
        linear=linear_sets(call, ("self source",)) if is_linear else (),
    )


def _number(call: Call) -> Meaning:
    """Return the meaning of an op that gives the host a number."""
    axes = [(OPAQUE,) * tensor.rank for tensor in call.inputs]
    return Meaning(tuple(axes), ())


OPERATORS = {
    **operators(_indexed, "index", traits=[Trait.INDEXED]),
    **operators(_indexed, "_unsafe_index"),
    **operators(_update, "index_put index_put_ _index_put_impl_", traits=[Trait.INDEXED]),
    **operators(_update, "_unsafe_index_put"),
    **operators(_scattered, "scatter scatter_add scatter_reduce", in_place=True),
    **operators(_written_along, "index_add index_copy index_fill index_reduce", in_place=True),
    **operators(_number, "item _local_scalar_dense is_nonzero equal", traits=[Trait.HOST_READ]),
}
