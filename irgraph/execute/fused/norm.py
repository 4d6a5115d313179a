"""The gradients of root-mean-square normalisation, which is one kernel on a CUDA device."""

from __future__ import annotations

from collections.abc import Sequence

from irgraph.execute.torch_values import Torch


def rms_norm_backward(
    grad_out: Torch,
    input: Torch,  # noqa: A002
    normalized_shape: Sequence[int],
    rstd: Torch,
    weight: Torch,
    output_mask: Sequence[bool],
) -> tuple[Torch, Torch]:
    """Return the gradients of the input and of the weight, ``None`` for one not in the mask."""
    import torch

    axes = tuple(range(-len(normalized_shape), 0))
    outer_axes = tuple(range(input.dim() - len(normalized_shape)))
    dtype = torch.promote_types(input.dtype, torch.float32)
    grad, normalized = grad_out.to(dtype), input.to(dtype) * rstd
    scaled = grad if weight is None else grad * weight.to(dtype)
    input_grad = weight_grad = None
    if output_mask[0]:
        mean = (scaled * normalized).mean(axes, keepdim=True)
        input_grad = (rstd * (scaled - normalized * mean)).to(input.dtype)
    if output_mask[1] and weight is not None:
        product = grad * normalized
        weight_grad = (product.sum(outer_axes) if outer_axes else product).to(weight.dtype)
    return input_grad, weight_grad
