"""irgraph's own norms: a sum of two tensors with its layer norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from irgraph.ops.call import Call
from irgraph.ops.custom import custom_operator
from irgraph.ops.meaning import ONE, ArgumentKey, Axes, Axis, Meaning, Result
from irgraph.ops.shapes import letters

if TYPE_CHECKING:
    from torch import Tensor


def add_layer_norm(
    input: Tensor,  # noqa: A002
    other: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, ...]:
    """Return the sum of two tensors, its layer norm, and the mean and reciprocal deviation."""
    import torch

    total = input + other
    return total, *torch.ops.aten.native_layer_norm(total, normalized_shape, weight, bias, eps)


def _sum_and_norm(call: Call) -> Meaning | None:
    """Return the meaning of a norm over the last axes of a sum."""
    rank = call.inputs[0].rank
    count = len(call.numbers("normalized_shape"))
    axes = letters(rank)
    normalized = axes[rank - count :]
    statistics: Axes = (*axes[: rank - count], *(ONE,) * count)
    arguments: dict[ArgumentKey, Axis] = {
        ("normalized_shape", i): axis for i, axis in enumerate(normalized)
    }
    if any(tensor.shape != call.inputs[0].shape for tensor in call.inputs[:2]):
        return None
    return Meaning(
        operands=(axes, axes, *(normalized,) * len(call.inputs[2:])),
        results=(
            Result(axes, frozenset({0, 1})),
            Result(axes),
            Result(statistics, frozenset({0, 1})),
            Result(statistics, frozenset({0, 1})),
        ),
        mixed=frozenset(map(str, normalized)),
        arguments=arguments,
    )


OPERATORS = custom_operator(
    "irgraph::add_layer_norm(Tensor input, Tensor other, SymInt[] normalized_shape,"
    " Tensor? weight=None, Tensor? bias=None, float eps=1e-05)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _sum_and_norm,
    add_layer_norm,
    text="*x d!, *x d!, d!, d! -> *x d!, *x d!, *x 1, *x 1",
)
