"""What our fused ops mean, said once more, as plainly as torch allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

Torch = Any


def batched_embedding(
    weights: Sequence[Torch], indices: Sequence[Torch], offsets: Sequence[Torch], **options: Any
) -> list[Torch]:
    kind = ("sum", "mean", "max")[options.pop("mode", 0)]
    scales = options.pop("per_sample_weights", ()) or (None,) * len(weights)
    return [
        F.embedding_bag(i, w, o, mode=kind, per_sample_weights=s, **options)
        for w, i, o, s in zip(weights, indices, offsets, scales, strict=True)
    ]


def adam(
    parameters: Sequence[Torch],
    grads: Sequence[Torch],
    means: Sequence[Torch],
    squares: Sequence[Torch],
    *,
    weight: float,
    beta2: float,
    value: float,
    eps: float,
    corrections: Sequence[float],
    steps: Sequence[float],
    weight_decay: float = 0,
    decay: float = 1,
) -> None:
    for k, parameter in enumerate(parameters):
        parameter *= decay
        grad = grads[k] + weight_decay * parameter
        means[k].copy_(means[k] + weight * (grad - means[k]))
        squares[k].copy_(beta2 * squares[k] + value * grad * grad)
        parameter += steps[k] * means[k] / (squares[k].sqrt() / corrections[k] + eps)


def add_layer_norm(
    x: Torch,
    other: Torch,
    normalized_shape: Sequence[int],
    weight: Torch = None,
    bias: Torch = None,
    eps: float = 1e-5,
) -> tuple[Torch, ...]:
    total = x + other
    axes = list(range(total.dim() - len(normalized_shape), total.dim()))
    mean = total.mean(axes, keepdim=True)
    scale = (total.var(axes, unbiased=False, keepdim=True) + eps).rsqrt()
    made = (total - mean) * scale
    made = made * weight if weight is not None else made
    return total, made + bias if bias is not None else made, mean, scale


def gemms(a: Sequence[Torch], b: Sequence[Torch], bias: Sequence[Torch] = ()) -> list[Torch]:
    added = bias or (0,) * len(a)
    return [x @ y + c for x, y, c in zip(a, b, added, strict=True)]


def addmm(c: Torch, a: Torch, b: Torch, beta: float = 1, alpha: float = 1) -> Torch:
    return beta * c + alpha * (a @ b)


def batched_embedding_backward(
    grads: Sequence[Torch],
    indices: Sequence[Torch],
    offsets: Sequence[Torch],
    *,
    num_weights: Sequence[int],
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Sequence[Torch] = (),
) -> list[Torch]:
    made = []
    scales = per_sample_weights or (None,) * len(grads)
    for grad, index, offset, rows, scale in zip(
        grads, indices, offsets, num_weights, scales, strict=True
    ):
        with torch.enable_grad():
            weight = grad.new_zeros(int(rows), grad.shape[1], requires_grad=True)
            kind = ("sum", "mean", "max")[mode]
            out = F.embedding_bag(index, weight, offset, mode=kind, per_sample_weights=scale)
            made += torch.autograd.grad(out, weight, grad)
    return [grad.to_sparse(1) for grad in made] if sparse else made


def batched_embedding_sgd(
    weights: Sequence[Torch],
    grads: Sequence[Torch],
    indices: Sequence[Torch],
    offsets: Sequence[Torch],
    *,
    alpha: float,
    mode: int = 0,
    per_sample_weights: Sequence[Torch] = (),
) -> None:
    rows = [len(weight) for weight in weights]
    made = batched_embedding_backward(
        grads, indices, offsets, num_weights=rows, mode=mode, per_sample_weights=per_sample_weights
    )
    for weight, grad in zip(weights, made, strict=True):
        weight += alpha * grad


def gated_backward(grad: Torch, gate: Torch, up: Torch) -> Sequence[Torch]:
    with torch.enable_grad():
        given = (gate.detach().requires_grad_(), up.detach().requires_grad_())
        return torch.autograd.grad(given[0] * given[0].sigmoid() * given[1], given, grad)


def rotary(x: Torch, cos: Torch, sin: Torch) -> Torch:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def rotary_backward(grad: Torch, cos: Torch, sin: Torch) -> Torch:
    with torch.enable_grad():
        x = torch.zeros_like(grad).requires_grad_()
        return torch.autograd.grad(rotary(x, cos, sin), x, grad)[0]


def gelu_backward(grad: Torch, x: Torch, c: Torch, **named: str) -> Sequence[Torch]:
    with torch.enable_grad():
        given = (x.detach().requires_grad_(), c.detach().requires_grad_())
        return torch.autograd.grad(F.gelu(sum(given), **named), given, grad)


OWN: Mapping[str, Callable[..., Torch]] = {
    "irgraph.batched_embedding": batched_embedding,
    "irgraph.batched_embedding_backward": batched_embedding_backward,
    "irgraph.batched_embedding_sgd": batched_embedding_sgd,
    "irgraph.fused_adam": adam,
    "irgraph.add_layer_norm": add_layer_norm,
    "irgraph.batched_gemm": gemms,
    "irgraph.addmm_relu": lambda *given, **named: addmm(*given, **named).clamp(min=0),
    "irgraph.linear_relu": lambda *given, **named: F.linear(*given, **named).clamp(min=0),
    "irgraph.mm_relu_backward": lambda g, b, y: (g @ b) * (y > 0),
    "irgraph.bias_gelu": lambda x, c, **named: F.gelu(x + c, **named),
    "irgraph.bias_gelu_backward": gelu_backward,
    "irgraph.silu_mul": lambda gate, up: gate * gate.sigmoid() * up,
    "irgraph.silu_mul_backward": gated_backward,
    "irgraph.rotary": rotary,
    "irgraph.rotary_backward": rotary_backward,
    "irgraph.addmm_tf32": addmm,
    "irgraph.linear_tf32": F.linear,
    "irgraph.mm_tf32": torch.mm,
    "irgraph.bmm_tf32": torch.bmm,
    "irgraph.baddbmm_tf32": addmm,
}
