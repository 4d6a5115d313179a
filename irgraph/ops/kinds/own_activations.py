"""irgraph's own activations: a GELU that adds a bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

from irgraph.ops.custom import custom_operator, gradient_op
from irgraph.ops.patterns import pattern

if TYPE_CHECKING:
    from torch import Tensor

BIASED = "*x n, n -> *x n"
BIASED_GRADIENT = "*x n, *x n, n -> *x n, n"


def bias_gelu(input: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:  # noqa: A002
    """Return ``gelu(input + bias)``; the bias is broadcast to the input [..., N]."""
    from torch.nn.functional import gelu

    return gelu(input + bias, approximate=approximate)


def bias_gelu_backward(
    grad: Tensor,
    input: Tensor,  # noqa: A002
    bias: Tensor,
    approximate: str = "none",
) -> tuple[Tensor, Tensor]:
    """Return the gradients of input and bias, given the gradient of ``gelu(input + bias)``."""
    import torch

    grad_input = torch.ops.aten.gelu_backward(grad, input + bias, approximate=approximate)
    return grad_input, grad_input.sum_to_size(bias.shape)


BACKWARD = (
    "irgraph::bias_gelu_backward(Tensor grad, Tensor input, Tensor bias, *,"
    " str approximate='none') -> (Tensor, Tensor)"
)

OPERATORS = {
    **custom_operator(
        "irgraph::bias_gelu(Tensor input, Tensor bias, *, str approximate='none') -> Tensor",
        pattern(BIASED),
        bias_gelu,
        backward=gradient_op(BACKWARD),
        text=BIASED,
    ),
    **custom_operator(
        BACKWARD,
        pattern(BIASED_GRADIENT, "grad"),
        bias_gelu_backward,
        text=BIASED_GRADIENT,
    ),
}
