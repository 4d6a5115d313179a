"""The parts of norms that are single kernels on a CUDA device, and that torch lacks on a CPU."""

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


def _channels(image: Torch, statistic: Torch) -> Torch:
    """Return a number for each channel in the shape of an image."""
    return statistic.view(1, -1, *(1,) * (image.dim() - 2))


def _samples(image: Torch) -> tuple[int, ...]:
    """Return all axes of an image but its channels."""
    return tuple(axis for axis in range(image.dim()) if axis != 1)


def batch_norm_stats(input: Torch, eps: float) -> tuple[Torch, Torch]:  # noqa: A002
    """Return the mean and the inverse deviation of each channel of a rank's samples."""
    variance = input.var(_samples(input), correction=0)
    return input.mean(_samples(input)), (variance + eps).rsqrt()


def batch_norm_gather_stats(
    input: Torch,  # noqa: A002
    mean: Torch,
    invstd: Torch,
    running_mean: Torch,
    running_var: Torch,
    momentum: float,
    eps: float,
    counts: Torch,
) -> tuple[Torch, Torch]:
    """Return the mean and the inverse deviation of each channel over the samples of all ranks."""
    shares = (counts / counts.sum())[:, None]
    total = (shares * mean).sum(0)
    variances = invstd**-2 - eps
    variance = (shares * (variances + (mean - total) ** 2)).sum(0)
    if running_mean is not None:
        count = counts.sum()
        running_mean.lerp_(total.to(running_mean), momentum)
        running_var.lerp_((variance * (count / (count - 1))).to(running_var), momentum)
    return total, (variance + eps).rsqrt()


def batch_norm_elemt(
    input: Torch,  # noqa: A002
    weight: Torch,
    bias: Torch,
    mean: Torch,
    invstd: Torch,
    eps: float,
) -> Torch:
    """Return an image normalised by statistics."""
    scale = invstd if weight is None else invstd * weight
    image = (input - _channels(input, mean)) * _channels(input, scale)
    return image if bias is None else image + _channels(input, bias)


def batch_norm_backward_reduce(
    grad_out: Torch,
    input: Torch,  # noqa: A002
    mean: Torch,
    invstd: Torch,
    weight: Torch,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Torch, Torch, Torch, Torch]:
    """Return the sums over a rank's samples in the gradients of a norm."""
    sum_dy = grad_out.sum(_samples(input))
    sum_dy_xmu = (grad_out * (input - _channels(input, mean))).sum(_samples(input))
    return sum_dy, sum_dy_xmu, sum_dy_xmu * invstd if weight_g else None, sum_dy.clone()


def batch_norm_backward_elemt(
    grad_out: Torch,
    input: Torch,  # noqa: A002
    mean: Torch,
    invstd: Torch,
    weight: Torch,
    sum_dy: Torch,
    sum_dy_xmu: Torch,
    count: Torch,
) -> Torch:
    """Return the gradient of an image from the sums over the samples of all ranks."""
    total = count.sum()
    scale = invstd if weight is None else invstd * weight
    slope = _channels(input, invstd**2 * sum_dy_xmu / total)
    centred = grad_out - _channels(input, sum_dy / total)
    return (centred - (input - _channels(input, mean)) * slope) * _channels(input, scale)
