"""Reference implementations of irgraph's fused ops in plain torch: slow, but easy to check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from irgraph.execute.narrow.ops import QUANTIZED
from irgraph.execute.tiers.bags import BAGS
from irgraph.execute.tiers.ops import TIERS
from irgraph.execute.torch_values import Torch
from irgraph.ir.tf32 import FIRST_FACTORS
from irgraph.ir.torch_schemas.differentiable import bias_gelu, bias_gelu_backward
from irgraph.ir.torch_schemas.flex import flex_attention, flex_attention_backward

Tensors = Sequence[torch.Tensor]
MEAN = 1


def batched_embedding(
    weights: Tensors,
    indices: Tensors,
    offsets: Tensors,
    mode: int = 0,
    per_sample_weights: Tensors = (),
    include_last_offset: bool = False,
) -> list[Torch]:
    """Return the bags of several tables: a sum, mean or maximum [bags, D] for each table."""
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
) -> list[Torch]:
    """Return the gradients [rows, D] of several tables from the bags' gradients [bags, D]."""
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
) -> list[Torch]:
    """Return the gradient [indices, D] of each index's row, for each table."""
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


def addmm_relu(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, beta: float = 1, alpha: float = 1
) -> Torch:
    """Return ``relu(beta * self + alpha * mat1 @ mat2)``."""
    return torch.addmm(self, mat1, mat2, beta=beta, alpha=alpha).relu()


def linear_relu(
    input: torch.Tensor,  # noqa: A002  (the schema's name)
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> Torch:
    """Return ``relu(input @ weight.T + bias)``."""
    return torch.nn.functional.linear(input, weight, bias).relu()


def mm_relu_backward(grad: torch.Tensor, mat2: torch.Tensor, output: torch.Tensor) -> Torch:
    """Return ``grad @ mat2``, masked to 0 where the output of the preceding ReLU is 0."""
    return torch.ops.aten.threshold_backward(torch.mm(grad, mat2), output, 0)


def batched_gemm(mat1: Tensors, mat2: Tensors, bias: Tensors = ()) -> list[Torch]:
    """Return several products of equal shapes, each with a bias if there are biases."""
    first, second = torch.stack(list(mat1)), torch.stack(list(mat2))
    if not bias:
        return list(torch.bmm(first, second).unbind())
    added = torch.stack(list(bias))
    added = added.unsqueeze(1) if added.dim() == 2 else added
    return list(torch.baddbmm(added, first, second).unbind())


def fused_adam(
    self: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    weight: float,
    beta2: float,
    value: float,
    eps: float,
    corrections: Sequence[float],
    steps: Sequence[float],
    weight_decay: float = 0,
    decay: float = 1,
) -> None:
    """Update parameters as Adam and AdamW do (``torch.optim.adam``, one tensor at a time).

    The host computes two arguments from the step counts: ``corrections`` are the roots of
    ``1 - beta2**t``, ``steps`` are ``-lr / (1 - beta1**t)``. ``weight`` is ``1 - beta1``, ``value``
    is ``1 - beta2``. ``weight_decay`` times the parameter is added to the gradient, and ``decay``
    scales the parameter (AdamW).
    """
    lists = (self, grads, exp_avgs, exp_avg_sqs, corrections, steps)
    for param, grad, average, square, correction, step in zip(*lists, strict=True):
        if decay != 1:
            param.mul_(decay)
        if weight_decay:
            grad = grad.add(param, alpha=weight_decay)
        average.lerp_(grad, weight)
        square.mul_(beta2).addcmul_(grad, grad, value=value)
        param.addcdiv_(average, (square.sqrt() / correction).add_(eps), value=step)


def add_layer_norm(
    input: torch.Tensor,  # noqa: A002  (the schema's name)
    other: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> Torch:
    """Return the sum of two tensors, its layer norm, and the mean and reciprocal deviation."""
    total = input + other
    return total, *torch.ops.aten.native_layer_norm(total, normalized_shape, weight, bias, eps)


DROPPED_BITS = 13
"""Number of bits by which the mantissa of f32 is longer than tf32's."""


def round_to_tf32(value: torch.Tensor) -> torch.Tensor:
    """Round f32 to 10 bits of mantissa: to nearest, ties to even."""
    bits = value.view(torch.int32)
    half = (1 << DROPPED_BITS - 1) - 1 + (bits >> DROPPED_BITS & 1)
    nearest = (bits + half & -1 << DROPPED_BITS).view(torch.float32)
    return torch.where(value.isnan(), value, nearest)


def product_in_tf32(name: str) -> Callable[..., Torch]:
    """Return torch's product with factors rounded to tf32 and sums in f32."""
    product, first = getattr(torch.ops.aten, name).default, FIRST_FACTORS[name]

    def multiply(**arguments: torch.Tensor) -> Torch:
        factors = list(arguments)[first : first + 2]
        return product(
            **arguments | {factor: round_to_tf32(arguments[factor]) for factor in factors}
        )

    return multiply


_FUNCTIONS = (
    batched_embedding,
    batched_embedding_backward,
    batched_embedding_sgd,
    addmm_relu,
    linear_relu,
    mm_relu_backward,
    batched_gemm,
    fused_adam,
    add_layer_norm,
    bias_gelu,
    bias_gelu_backward,
    flex_attention,
    flex_attention_backward,
)

IMPLEMENTATIONS: Mapping[str, Callable[..., Torch]] = {
    **{f"irgraph.{function.__name__}": function for function in _FUNCTIONS},
    **{f"irgraph.{name}_tf32": product_in_tf32(name) for name in FIRST_FACTORS},
    **TIERS,
    **BAGS,
    **QUANTIZED,
}
"""Reference implementation of each of irgraph's ops; arguments are passed by the schema's names."""
