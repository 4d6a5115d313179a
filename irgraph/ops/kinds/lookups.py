"""Lookups of rows: embeddings, bags, and indexing along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.meaning import IN_FIRST, Axes, Meaning, Multiple, Result, Slope, growing_together
from irgraph.ops.operator import Trait, operators
from irgraph.ops.patterns import linear_sets, new_results, pattern
from irgraph.ops.shapes import letters, opaque, replaced

EMBEDDING = "v! d, *x -> *x d"


MIXED = frozenset({"v", "i", "b", "o"})
"""Letters of rows, indices, bags and offsets."""

MAX_MODE = 2
"""Mode of bags that takes the maximum."""


def _embedding_gradient(call: Call) -> Meaning | None:
    """Return the meaning of the gradient of a table: rows of all lookups are added up."""
    gradient, indices = call.inputs[:2]
    if gradient.rank != indices.rank + 1:
        return None
    samples = letters(indices.rank, "x")
    counts_samples = call.flag("scale_grad_by_freq")
    return Meaning(
        operands=((*samples, "d"), samples),
        results=new_results(call, ("v", "d")),
        mixed=frozenset({"v", *samples} if counts_samples else {"v"}),
        linear=IN_FIRST,
        arguments={("num_weights", -1): "v"},
    )


def _bags(call: Call) -> Meaning | None:
    """Return the meaning of ``embedding_bag``: bags of rows, each a run of indices."""
    indices, offsets = call.inputs[1:3]
    if not call.outputs or indices.rank != 1:
        return None
    bags, *auxiliaries = call.outputs
    is_maximum = call.number("mode", 0) == MAX_MODE
    slopes: list[Slope] = []
    offset = "b"
    if bags.shape[0] != offsets.shape[0]:
        offset = "o"
        slopes += growing_together("b", "o")
    operands: list[Axes] = [("v", "d"), ("i",), (offset,)]
    operands += [("i",)] * len(call.inputs[3:])
    results: list[Axes] = [("b", "d")]
    results += _auxiliary_axes(auxiliaries, indices, bags)
    return Meaning(
        operands=tuple(operands),
        results=tuple(map(Result, results)),
        mixed=MIXED,
        linear=() if is_maximum else linear_sets(call, ("weight",)),
        slopes=tuple(slopes),
        multiples=_lookups_per_bag(indices, bags),
    )


def _auxiliary_axes(
    auxiliaries: Sequence[Tensor],
    indices: Tensor,
    bags: Tensor,
) -> list[Axes]:
    """Return the axes of the bag of each index, the sizes of bags and the indices of maxima."""
    axes = [opaque(tensor) for tensor in auxiliaries]
    if len(auxiliaries) != 3:
        return axes
    of_index, sizes, maxima = auxiliaries
    count = bags.shape[:1]
    if of_index.shape == indices.shape:
        axes[0] = ("i",)
    if sizes.shape[:1] == count:
        axes[1] = ("b",)
    if maxima.shape[:1] == count:
        axes[2] = ("b", "d")[: maxima.rank]
    return axes


def _lookups_per_bag(indices: Tensor, bags: Tensor) -> tuple[Multiple, ...]:
    """Return that indices follow the number of bags, each bag with as many as now on average."""
    count = bags.shape[0]
    if indices.rank != 1 or not count or indices.shape[0] % count:
        return ()
    return (("b", "i", indices.shape[0] // count),)


def _bags_gradient(call: Call) -> Meaning | None:
    """Return the meaning of the gradient of bags: rows of all bags are added up."""
    gradient, indices, *remaining = call.inputs
    if gradient.rank != 2 or indices.rank != 1:
        return None
    slopes: list[Slope] = []
    operands: list[Axes] = [("b", "d"), ("i",)]
    if call.op.base == "_embedding_bag_backward" and remaining:
        offsets, *remaining = remaining
        offset = "b"
        if offsets.shape[0] != gradient.shape[0]:
            offset = "o"
            slopes = [Slope("b", "o", Fraction(1))]
        operands.append((offset,))
    operands += _auxiliary_axes(remaining[:3], indices, gradient)
    operands += [("i",)] * len(remaining[3:])
    return Meaning(
        operands=tuple(operands),
        results=tuple(Result(("v", "d")[: tensor.rank]) for tensor in call.outputs),
        mixed=MIXED,
        linear=IN_FIRST,
        arguments={("num_weights", -1): "v"},
        slopes=tuple(slopes),
        multiples=_lookups_per_bag(indices, gradient),
    )


def _index_select(call: Call) -> Meaning | None:
    """Return the meaning of ``index_select``: elements along an axis are looked up."""
    source = call.inputs[0]
    axes = letters(source.rank)
    index = call.axis("dim", source.rank)
    elements = replaced(axes, index, "i")
    return Meaning(
        operands=(axes, ("i",)),
        results=(Result(elements),),
        mixed=frozenset(axes[index : index + 1]),
        linear=IN_FIRST,
    )


def _gather(call: Call) -> Meaning | None:
    """Return the meaning of ``gather``: each index looks up along one axis in its position."""
    source, indices = call.inputs[:2]
    if source.rank != indices.rank:
        return None
    axes = letters(source.rank)
    index = call.axis("dim", source.rank)
    of_indices = axes_of_indices(source, indices, index)
    return Meaning(
        operands=(axes, of_indices),
        results=(Result(of_indices),),
        mixed=frozenset(axes).difference(of_indices),
        linear=IN_FIRST,
    )


def axes_of_indices(
    source: Tensor,
    indices: Tensor,
    index: int,
) -> tuple[str, ...]:
    """Return the axes of indices into one axis of a tensor, which may be shorter in the others."""
    axes: list[str] = []
    pairs = zip(source.shape, indices.shape, strict=True)
    for position, (size, other) in enumerate(pairs):
        is_common = position != index and size == other
        axes.append(f"d{position}" if is_common else f"i{position}")
    return tuple(axes)


def _triangle(call: Call) -> Meaning | None:
    """Return the meaning of ``tril`` and ``triu``: the last two axes are compared."""
    axes = letters(call.inputs[0].rank)
    return Meaning(
        operands=(axes,),
        results=new_results(call, axes),
        mixed=frozenset(axes[-2:]),
        linear=IN_FIRST,
    )


OPERATORS = {
    **operators(
        pattern(EMBEDDING, "weight"), "embedding", text=EMBEDDING, traits=[Trait.LOOKUP, Trait.ROWS]
    ),
    **operators(
        _embedding_gradient,
        "embedding_dense_backward embedding_backward",
        text="*x d, *x -> v! d",
    ),
    **operators(
        _bags,
        "embedding_bag _embedding_bag _embedding_bag_forward_only",
        text="v! d, i!, b! -> b! d",
        traits=[Trait.LOOKUP, Trait.BAGS],
    ),
    **operators(
        _bags_gradient,
        "_embedding_bag_backward _embedding_bag_dense_backward",
        text="b! d, i!, b! -> v! d",
        traits=[Trait.BAGS_GRADIENT],
    ),
    **operators(_index_select, "index_select"),
    **operators(_gather, "gather"),
    **operators(_triangle, "tril triu tril_ triu_"),
}
