"""Lookups of rows: embeddings, bags, and indexing along an axis."""

from __future__ import annotations

from fractions import Fraction

from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.meaning import OPAQUE, Axes, Meaning, Result, Slope
from irgraph.ops.operator import Trait, operators
from irgraph.ops.patterns import linear_sets, pattern
from irgraph.ops.shapes import letters, replaced

EMBEDDING = "v! d, *x -> *x d"


def _embedding_gradient(call: Call) -> Meaning | None:
    """Return the meaning of the gradient of a table: rows of all lookups are added up."""
    gradient, indices = call.inputs[:2]
    outer = letters(indices.rank, "x")
    counts_samples = call.flag("scale_grad_by_freq")
    if gradient.rank != indices.rank + 1:
        return None
    return Meaning(
        operands=((*outer, "d"), outer),
        results=(Result(("v", "d")),) * len(call.outputs),
        mixed=frozenset({"v", *(map(str, outer) if counts_samples else ())}),
        linear=(frozenset({0}),),
        arguments={("num_weights", -1): "v"},
    )


def _bags(call: Call) -> Meaning | None:
    """Return the meaning of ``embedding_bag``: bags of rows, each a run of indices."""
    indices, offsets = call.inputs[1:3]
    if not call.outputs or indices.rank != 1:
        return None
    result, *auxiliaries = call.outputs
    equal = result.shape[0] == offsets.shape[0]
    of_offsets: Axes = ("b",) if equal else ("o",)
    slopes = () if equal else (Slope("b", "o", Fraction(1)), Slope("o", "b", Fraction(1)))
    operands: list[Axes] = [("v", "d"), ("i",), of_offsets]
    operands += [("i",)] * len(call.inputs[3:])
    results: list[Axes] = [("b", "d")]
    results += _auxiliary_axes(auxiliaries, indices, result)
    return Meaning(
        operands=tuple(operands),
        results=tuple(map(Result, results)),
        mixed=frozenset({"v", "i", "b", "o"}),
        linear=linear_sets(call, ("weight",)) if call.number("mode", 0) != MAX_MODE else (),
        slopes=slopes,
        multiples=_lookups_per_bag(indices, result),
    )


MAX_MODE = 2
"""Mode of bags that takes the maximum."""


def _auxiliary_axes(auxiliaries: list[Tensor], indices: Tensor, bags: Tensor) -> list[Axes]:
    """Return the axes of the bag of each index, the sizes of bags and the indices of maxima."""
    if len(auxiliaries) != 3:
        return [(OPAQUE,) * tensor.rank for tensor in auxiliaries]
    of_index, sizes, maxima = auxiliaries
    return [
        ("i",) if of_index.shape == indices.shape else (OPAQUE,) * of_index.rank,
        ("b",) if sizes.shape[:1] == bags.shape[:1] else (OPAQUE,) * sizes.rank,
        ("b", "d")[: maxima.rank]
        if maxima.shape[:1] == bags.shape[:1]
        else (OPAQUE,) * maxima.rank,
    ]


def _lookups_per_bag(indices: Tensor, bags: Tensor) -> tuple[tuple[str, str, int], ...]:
    """Return that indices follow the number of bags, each bag with as many as now on average."""
    if indices.rank == 1 and bags.shape[0] and indices.shape[0] % bags.shape[0] == 0:
        return (("b", "i", indices.shape[0] // bags.shape[0]),)
    return ()


def _bags_gradient(call: Call) -> Meaning | None:
    """Return the meaning of the gradient of bags: rows of all bags are added up."""
    gradient, indices, *rest = call.inputs
    slopes: tuple[Slope, ...] = ()
    operands: list[Axes] = [("b", "d"), ("i",)]
    if call.op.base == "_embedding_bag_backward" and rest:
        offsets, *rest = rest
        equal = offsets.shape[0] == gradient.shape[0]
        operands.append(("b",) if equal else ("o",))
        slopes = () if equal else (Slope("b", "o", Fraction(1)),)
    if len(rest) >= 3:
        operands += _auxiliary_axes(rest[:3], indices, gradient)
        operands += [("i",)] * len(rest[3:])
    else:
        operands += [(OPAQUE,) * tensor.rank for tensor in rest]
    if gradient.rank != 2 or indices.rank != 1:
        return None
    return Meaning(
        operands=tuple(operands),
        results=tuple(Result(("v", "d")[: tensor.rank]) for tensor in call.outputs),
        mixed=frozenset({"v", "i", "b", "o"}),
        linear=(frozenset({0}),),
        arguments={("num_weights", -1): "v"},
        slopes=slopes,
        multiples=_lookups_per_bag(indices, gradient),
    )


def _index_select(call: Call) -> Meaning | None:
    """Return the meaning of ``index_select``: elements along an axis are looked up."""
    source = call.inputs[0]
    axes = letters(source.rank)
    index = call.axis("dim", source.rank)
    return Meaning(
        operands=(axes, ("i",)),
        results=(Result(replaced(axes, index, "i")),),
        mixed=frozenset(map(str, axes[index : index + 1])),
        linear=(frozenset({0}),),
    )


def _gather(call: Call) -> Meaning | None:
    """Return the meaning of ``gather``: each index looks up along one axis in its position."""
    source, indices = call.inputs[:2]
    index = call.axis("dim", source.rank)
    if source.rank != indices.rank:
        return None
    axes: list[str] = []
    of_indices: list[str] = []
    for position, (size, other) in enumerate(zip(source.shape, indices.shape, strict=True)):
        is_common = position != index and size == other
        axes.append(f"d{position}")
        of_indices.append(f"d{position}" if is_common else f"i{position}")
    mixed = {f"d{p}" for p in range(source.rank) if of_indices[p] != f"d{p}"}
    return Meaning(
        operands=(tuple(axes), tuple(of_indices)),
        results=(Result(tuple(of_indices)),),
        mixed=frozenset(mixed),
        linear=(frozenset({0}),),
    )


def _triangle(call: Call) -> Meaning | None:
    """Return the meaning of ``tril`` and ``triu``: the last two axes are compared."""
    axes = letters(call.inputs[0].rank)
    return Meaning(
        operands=(axes,),
        results=(Result(axes),) * len(call.outputs),
        mixed=frozenset(map(str, axes[-2:])),
        linear=(frozenset({0}),),
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
