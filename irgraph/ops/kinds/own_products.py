"""irgraph's own products: with a ReLU, its gradient, and several at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from irgraph.ops.call import Call
from irgraph.ops.custom import custom_operator
from irgraph.ops.kinds.products import (
    ADDMM,
    LINEAR,
    MM,
    linear_flops,
    product_flops,
    with_bias,
    without_sums,
)
from irgraph.ops.meaning import Axes, Meaning, Result
from irgraph.ops.patterns import linear_sets, pattern

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = Sequence[Tensor]


def addmm_relu(
    self: Tensor, mat1: Tensor, mat2: Tensor, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Return ``relu(beta * self + alpha * mat1 @ mat2)``."""
    import torch

    return torch.addmm(self, mat1, mat2, beta=beta, alpha=alpha).relu()


def linear_relu(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    """Return ``relu(input @ weight.T + bias)``."""
    from torch.nn.functional import linear

    return linear(input, weight, bias).relu()


def mm_relu_backward(grad: Tensor, mat2: Tensor, output: Tensor) -> Tensor:
    """Return ``grad @ mat2``, masked to 0 where the output of the preceding ReLU is 0."""
    import torch

    masked: Tensor = torch.ops.aten.threshold_backward(torch.mm(grad, mat2), output, 0)
    return masked


def batched_gemm(mat1: Tensors, mat2: Tensors, bias: Tensors = ()) -> list[Tensor]:
    """Return several products of equal shapes, each with a bias if there are biases."""
    import torch

    first, second = torch.stack(list(mat1)), torch.stack(list(mat2))
    if not bias:
        return list(torch.bmm(first, second).unbind())
    added = torch.stack(list(bias))
    added = added.unsqueeze(1) if added.dim() == 2 else added
    return list(torch.baddbmm(added, first, second).unbind())


def _batched(call: Call) -> Meaning | None:
    """Return the meaning of several products, each a function of one pair of factors."""
    spans = call.spans
    count = len(call.outputs)
    axes_by_name: dict[str, Axes] = {"mat1": ("m", "k"), "mat2": ("k", "n")}
    operands: list[Axes] = []
    for name, span in spans.items():
        for position in span:
            tensor = call.inputs[position]
            # a bias broadcasts to the product, aligned at its last axis
            axes = axes_by_name.get(name) or ("m", "n")[2 - tensor.rank :]
            if len(axes) != tensor.rank:
                return None
            operands.append(axes)
    results: list[Result] = []
    for position in range(count):
        sources = frozenset(span[position] for span in spans.values())
        results.append(Result(("m", "n"), sources))
    return Meaning(
        operands=tuple(operands),
        results=tuple(results),
        linear=linear_sets(call, ("mat1 bias", "mat2 bias")),
    )


def _batched_flops(call: Call) -> int:
    terms = call.inputs[0].numel
    columns = call.outputs[0].shape[1]
    return 2 * len(call.outputs) * int(terms) * int(columns)


RELU_GRADIENT = "m k, k n, m n -> m n"

OPERATORS = {
    **custom_operator(
        "irgraph::addmm_relu(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1,"
        " Scalar alpha=1) -> Tensor",
        without_sums(with_bias("mat1", "mat2")),
        addmm_relu,
        text=ADDMM,
        flops=product_flops("mat1", "mat2"),
    ),
    **custom_operator(
        "irgraph::linear_relu(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
        pattern(LINEAR),
        linear_relu,
        text=LINEAR,
        flops=linear_flops,
    ),
    **custom_operator(
        "irgraph::mm_relu_backward(Tensor grad, Tensor mat2, Tensor output) -> Tensor",
        pattern(RELU_GRADIENT, "grad", "mat2"),
        mm_relu_backward,
        text=RELU_GRADIENT,
        flops=product_flops("grad", "mat2"),
    ),
    **custom_operator(
        "irgraph::batched_gemm(Tensor[] mat1, Tensor[] mat2, *, Tensor[] bias=[]) -> Tensor[]",
        _batched,
        batched_gemm,
        text=MM,
        flops=_batched_flops,
    ),
}
