"""irgraph's own optimizers: Adam and AdamW over lists of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from irgraph.ops.custom import custom_operator
from irgraph.ops.kinds.lists import by_position

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = Sequence[Tensor]


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


OPERATORS = custom_operator(
    "irgraph::fused_adam(Tensor(a!)[] self, Tensor[] grads, Tensor(b!)[] exp_avgs, "
    "Tensor(c!)[] exp_avg_sqs, *, Scalar weight, Scalar beta2, Scalar value, Scalar eps, "
    "Scalar[] corrections, Scalar[] steps, Scalar weight_decay=0, Scalar decay=1) -> ()",
    by_position,
    fused_adam,
    counted=True,
)
