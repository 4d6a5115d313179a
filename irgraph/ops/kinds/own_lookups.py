"""irgraph's own lookups: bags of several tables at once, their gradients and updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from irgraph.ir.tensor import Tensor as TensorType
from irgraph.ir.torch_schemas.custom_ops import DifferentiatedCall
from irgraph.ops.call import Call
from irgraph.ops.custom import custom_operator
from irgraph.ops.meaning import ArgumentKey, Axes, Axis, Meaning, Result, Slope
from irgraph.ops.operator import Trait
from irgraph.ops.patterns import linear_sets

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = Sequence[Tensor]

MEAN, MAX = 1, 2
"""Modes of bags."""


def batched_embedding(
    weights: Tensors,
    indices: Tensors,
    offsets: Tensors,
    mode: int = 0,
    per_sample_weights: Tensors = (),
    include_last_offset: bool = False,
) -> list[Tensor]:
    """Return the bags of several tables: a sum, mean or maximum [bags, D] for each table."""
    import torch

    sample_weights = per_sample_weights or (None,) * len(weights)
    return [
        torch.ops.aten._embedding_bag(w, i, o, False, mode, False, p, include_last_offset)[0]
        for w, i, o, p in zip(weights, indices, offsets, sample_weights, strict=True)
    ]


def batched_embedding_backward(
    grads: Tensors,
    indices: Tensors,
    offsets: Tensors,
    num_weights: Sequence[int],
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensors = (),
) -> list[Tensor]:
    """Return the gradients [rows, D] of several tables from the bags' gradients [bags, D]."""
    import torch

    rows = _row_gradients(grads, indices, offsets, mode, per_sample_weights)
    gradients = []
    for count, index, row in zip(num_weights, indices, rows, strict=True):
        size = (count, row.shape[1])
        if sparse:
            coordinates = index.long().unsqueeze(0)
            gradients.append(torch.sparse_coo_tensor(coordinates, row, size, check_invariants=True))
        else:
            gradients.append(row.new_zeros(size).index_add_(0, index, row))
    return gradients


def batched_embedding_sgd(
    weights: Tensors,
    grads: Tensors,
    indices: Tensors,
    offsets: Tensors,
    alpha: float,
    mode: int = 0,
    per_sample_weights: Tensors = (),
) -> None:
    """Add ``alpha`` times their gradients to several tables, in place."""
    counts = [len(weight) for weight in weights]
    gradients = batched_embedding_backward(
        grads, indices, offsets, counts, mode, per_sample_weights=per_sample_weights
    )
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.add_(gradient, alpha=alpha)


def _row_gradients(
    grads: Tensors, indices: Tensors, offsets: Tensors, mode: int, sample_weights: Tensors
) -> list[Tensor]:
    """Return the gradient [indices, D] of each index's row, for each table."""
    import torch

    if mode > MEAN:
        raise NotImplementedError("the gradient of a maximum needs the rows that were largest")
    gradients = []
    for k, (grad, index, offset) in enumerate(zip(grads, indices, offsets, strict=True)):
        starts = offset[: grad.shape[0]]
        ends = torch.cat([starts[1:], starts.new_tensor([index.numel()])])
        sizes = ends - starts
        scale = 1 / sizes.clamp(min=1) if mode == MEAN else torch.ones_like(sizes)
        rows = (grad * scale.to(grad.dtype).unsqueeze(1)).repeat_interleave(sizes.long(), 0)
        gradients.append(rows * sample_weights[k].unsqueeze(1) if sample_weights else rows)
    return gradients


def _gradient_types(grads: Tensors, num_weights: Sequence[int], **_: object) -> list[Tensor]:
    pairs = zip(grads, num_weights, strict=True)
    return [grad.new_empty((count, grad.shape[1])) for grad, count in pairs]


def _no_results(**_: object) -> None:
    """Return the results of an op that only writes its operands."""


def _gradients_of_tables(call: DifferentiatedCall) -> Mapping[str, Any]:
    """Return the gradients of tables; weights of single samples get none."""
    import torch

    arguments = call.arguments
    if "per_sample_weights" in call.needs:
        raise NotImplementedError("the gradient of per_sample_weights is not computed")
    pairs = zip(call.grads, call.results, strict=True)
    compute = torch.ops.irgraph.batched_embedding_backward
    gradients = compute(
        [torch.zeros_like(result) if grad is None else grad for grad, result in pairs],
        arguments["indices"],
        arguments["offsets"],
        num_weights=[len(weight) for weight in arguments["weights"]],
        mode=arguments.get("mode", 0),
        per_sample_weights=arguments.get("per_sample_weights", []),
    )
    return {"weights": gradients}


def _bags(call: Call) -> Meaning | None:
    """Return the meaning of bags of several tables, or of their gradients or updates.

    The tensors of one position belong together: they have their letters to themselves.
    """
    spans = call.spans
    count = len(spans["indices"])
    if any(len(span) != count for span in spans.values()):
        return None
    operands: dict[int, Axes] = {}
    slopes: list[Slope] = []
    multiples: list[tuple[str, str, int]] = []
    for p in range(count):
        tensors = {name: call.inputs[span[p]] for name, span in spans.items()}
        bags = tensors["grads"] if "grads" in tensors else call.outputs[p]
        axes = _axes_of_table(str(p), tensors["offsets"].shape[0] == bags.shape[0])
        operands |= {span[p]: axes[name] for name, span in spans.items()}
        if axes["offsets"] != axes["grads"][:1]:
            slopes += [
                Slope(f"b{p}", f"o{p}", Fraction(1)),
                Slope(f"o{p}", f"b{p}", Fraction(1)),
            ]
        multiples += _lookups_per_bag(p, tensors["indices"], bags)
    is_lookup = call.op.base == "batched_embedding"
    names = ("b{}", "d{}") if is_lookup else ("v{}", "d{}")
    reads = (frozenset(span[p] for span in spans.values()) for p in range(count))
    results = [Result(tuple(n.format(p) for n in names), read) for p, read in enumerate(reads)]
    arguments: dict[ArgumentKey, Axis] = {}
    if "num_weights" in call.arguments:
        arguments = {("num_weights", p): f"v{p}" for p in range(count)}
    return Meaning(
        operands=tuple(operands[i] for i in range(len(call.inputs))),
        results=tuple(results) if call.outputs else (),
        mixed=frozenset(f"{letter}{p}" for letter in "vibo" for p in range(count)),
        linear=linear_sets(call, ("weights grads",)) if call.number("mode", 0) != MAX else (),
        arguments=arguments,
        slopes=tuple(slopes),
        multiples=tuple(multiples),
    )


def _axes_of_table(suffix: str, equal: bool) -> dict[str, Axes]:
    """Return the axes of the tensors of one table, by argument.

    ``equal`` if there are as many offsets as bags.
    """
    bags = f"b{suffix}"
    return {
        "weights": (f"v{suffix}", f"d{suffix}"),
        "grads": (bags, f"d{suffix}"),
        "indices": (f"i{suffix}",),
        "offsets": (bags if equal else f"o{suffix}",),
        "per_sample_weights": (f"i{suffix}",),
    }


def _lookups_per_bag(
    position: int, indices: TensorType, bags: TensorType
) -> list[tuple[str, str, int]]:
    """Return that indices follow the number of bags, if it divides their number."""
    count = bags.shape[0]
    if count and indices.shape[0] % count == 0:
        return [(f"b{position}", f"i{position}", indices.shape[0] // count)]
    return []


OPERATORS = {
    **custom_operator(
        "irgraph::batched_embedding(Tensor[] weights, Tensor[] indices, Tensor[] offsets, *, "
        "int mode=0, Tensor[] per_sample_weights=[], bool include_last_offset=False)"
        " -> Tensor[]",
        _bags,
        batched_embedding,
        backward=_gradients_of_tables,
        text="v! d, i!, b! -> b! d",
        traits=[Trait.LOOKUP, Trait.BATCHED_BAGS],
    ),
    **custom_operator(
        "irgraph::batched_embedding_backward(Tensor[] grads, Tensor[] indices, Tensor[] offsets,"
        " *, int[] num_weights, int mode=0, bool sparse=False, "
        "Tensor[] per_sample_weights=[]) -> Tensor[]",
        _bags,
        batched_embedding_backward,
        types=_gradient_types,
        text="b! d, i!, b! -> v! d",
        traits=[Trait.BATCHED_BAGS],
    ),
    **custom_operator(
        "irgraph::batched_embedding_sgd(Tensor(a!)[] weights, Tensor[] grads, Tensor[] indices, "
        "Tensor[] offsets, *, Scalar alpha, int mode=0, Tensor[] per_sample_weights=[]) -> ()",
        _bags,
        batched_embedding_sgd,
        types=_no_results,
        text="v! d, b! d, i!, b! ->",
        traits=[Trait.BATCHED_BAGS],
    ),
}
