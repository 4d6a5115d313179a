"""irgraph's own lookups: bags of several tables at once, their gradients and updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from irgraph.ir.tensor import Tensor as TensorType
from irgraph.ir.torch_schemas.custom_ops import DifferentiatedCall
from irgraph.ops.call import Call
from irgraph.ops.custom import custom_operator
from irgraph.ops.meaning import Arguments, Axes, Meaning, Multiple, Result, Slope, growing_together
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
    look_up = torch.ops.aten._embedding_bag
    bags: list[Tensor] = []
    for weight, index, offset, factors in zip(
        weights, indices, offsets, sample_weights, strict=True
    ):
        results = look_up(weight, index, offset, False, mode, False, factors, include_last_offset)
        bags.append(results[0])
    return bags


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
    grads: Tensors,
    indices: Tensors,
    offsets: Tensors,
    mode: int,
    sample_weights: Tensors,
) -> list[Tensor]:
    """Return the gradient [indices, D] of each index's row, for each table."""
    import torch

    if mode > MEAN:
        raise NotImplementedError("the gradient of a maximum needs the rows that were largest")
    gradients = []
    tables = zip(grads, indices, offsets, strict=True)
    for position, (grad, index, offset) in enumerate(tables):
        starts = offset[: grad.shape[0]]
        end = starts.new_tensor([index.numel()])
        sizes = torch.cat([starts[1:], end]) - starts
        if mode == MEAN:
            shares = (1 / sizes.clamp(min=1)).to(grad.dtype)
            grad = grad * shares.unsqueeze(1)
        rows = grad.repeat_interleave(sizes.long(), 0)
        if sample_weights:
            rows = rows * sample_weights[position].unsqueeze(1)
        gradients.append(rows)
    return gradients


def _gradient_types(
    grads: Tensors,
    num_weights: Sequence[int],
    **_: object,
) -> list[Tensor]:
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
    results: list[Result] = []
    slopes: list[Slope] = []
    multiples: list[Multiple] = []
    rows = "b" if call.op.base == "batched_embedding" else "v"
    for p in range(count):
        positions = {name: span[p] for name, span in spans.items()}
        tensors = {name: call.inputs[index] for name, index in positions.items()}
        bags = tensors["grads"] if "grads" in tensors else call.outputs[p]
        is_equal = tensors["offsets"].shape[0] == bags.shape[0]
        axes = _axes_of_table(str(p), is_equal)
        for name, index in positions.items():
            operands[index] = axes[name]
        sources = frozenset(positions.values())
        results.append(Result((f"{rows}{p}", f"d{p}"), sources))
        if not is_equal:
            slopes += growing_together(f"b{p}", f"o{p}")
        multiples += _lookups_per_bag(p, tensors["indices"], bags)
    arguments: Arguments = {}
    if "num_weights" in call.arguments:
        arguments = {("num_weights", p): f"v{p}" for p in range(count)}
    is_maximum = call.number("mode", 0) == MAX
    return Meaning(
        operands=tuple(operands[i] for i in range(len(call.inputs))),
        results=tuple(results) if call.outputs else (),
        mixed=frozenset(f"{letter}{p}" for letter in "vibo" for p in range(count)),
        linear=() if is_maximum else linear_sets(call, ("weights grads",)),
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
    position: int,
    indices: TensorType,
    bags: TensorType,
) -> list[Multiple]:
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
