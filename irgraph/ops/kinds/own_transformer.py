"""irgraph's own kernels of transformer blocks: gated activations and rotary embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from irgraph.ir.torch_schemas.custom_ops import DifferentiatedCall
from irgraph.ops.call import Call
from irgraph.ops.custom import custom_operator, gradient_op
from irgraph.ops.meaning import Meaning, Result
from irgraph.ops.patterns import pattern
from irgraph.ops.shapes import broadcast_axes, broadcast_shape, letters

if TYPE_CHECKING:
    from torch import Tensor

GATED = "*x, *x -> *x"
GATED_GRADIENT = "*x, *x, *x -> *x, *x"


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Return ``silu(gate) * up``, the activation of SwiGLU."""
    from torch.nn.functional import silu

    return silu(gate) * up


def silu_mul_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``gate`` and ``up``."""
    import torch
    from torch.nn.functional import silu

    return torch.ops.aten.silu_backward(grad * up, gate), grad * silu(gate)


def rotary(input: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # noqa: A002
    """Return positions rotated into a tensor; element ``i`` of a row and ``i + D / 2`` are a pair.

    ``cos`` and ``sin`` are broadcast to the input [..., D].
    """
    import torch

    first, second = input.chunk(2, dim=-1)
    return input * cos + torch.cat((-second, first), dim=-1) * sin


def rotary_backward(grad: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the gradient of the input of ``rotary``."""
    import torch

    first, second = (grad * sin).chunk(2, dim=-1)
    return grad * cos + torch.cat((second, -first), dim=-1)


def _rotated(call: Call) -> Meaning | None:
    """Return the meaning of a rotation: pairs along the last axis are mixed."""
    tensor = call.inputs[0]
    if broadcast_shape(call.inputs) != tensor.shape or tensor.shape[-1] % 2:
        return None
    axes = letters(tensor.rank)
    operands = tuple(broadcast_axes(operand, tensor.shape, axes) for operand in call.inputs)
    return Meaning(
        operands=operands,
        results=(Result(axes),),
        mixed=frozenset(map(str, axes[-1:])),
        linear=(frozenset({0}),),
        steps=((str(axes[-1]), 2),),
    )


def _rotary_gradient(call: DifferentiatedCall) -> dict[str, Tensor]:
    """Return the gradient of the input; the angles are constants."""
    import torch

    (grad,) = call.grads
    compute = torch.ops.irgraph.rotary_backward
    return {"input": compute(grad, call.arguments["cos"], call.arguments["sin"])}


GATED_BACKWARD = (
    "irgraph::silu_mul_backward(Tensor grad, Tensor gate, Tensor up) -> (Tensor, Tensor)"
)

OPERATORS = {
    **custom_operator(
        "irgraph::silu_mul(Tensor gate, Tensor up) -> Tensor",
        pattern(GATED, "up"),
        silu_mul,
        backward=gradient_op(GATED_BACKWARD),
        text=GATED,
    ),
    **custom_operator(
        GATED_BACKWARD,
        pattern(GATED_GRADIENT, "grad"),
        silu_mul_backward,
        text=GATED_GRADIENT,
    ),
    **custom_operator(
        "irgraph::rotary(Tensor input, Tensor cos, Tensor sin) -> Tensor",
        _rotated,
        rotary,
        backward=_rotary_gradient,
    ),
    **custom_operator(
        "irgraph::rotary_backward(Tensor grad, Tensor cos, Tensor sin) -> Tensor",
        _rotated,
        rotary_backward,
    ),
}
