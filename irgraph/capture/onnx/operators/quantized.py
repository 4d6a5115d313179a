"""Quantisation and dequantisation operators, as their arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.onnx.bind import Convert, UnsupportedError
from irgraph.capture.onnx.model import dtype_of


def quantize(
    x: Torch,
    scale: Torch,
    zero: Torch = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Torch:
    """``QuantizeLinear`` by one scale, or one for each element of an axis."""
    dtype = dtype_of(output_dtype) if output_dtype else torch.uint8
    dtype = zero.dtype if zero is not None else dtype
    if block_size or dtype is None or dtype.is_floating_point:
        raise UnsupportedError(
            f"its attribute block_size = {block_size}, or its type, is not supported"
        )
    if precision:
        raise UnsupportedError(f"its attribute precision = {precision} is not supported")
    rounded = torch.round(x / _along(scale, x, axis))
    if zero is not None:
        rounded = rounded + _along(zero, x, axis).to(x.dtype)
    info = torch.iinfo(dtype)
    return torch.clamp(rounded, info.min, info.max).to(dtype)


def dequantize(
    x: Torch,
    scale: Torch,
    zero: Torch = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Torch:
    """``DequantizeLinear`` by one scale, or one for each element of an axis."""
    if block_size or output_dtype:
        raise UnsupportedError(
            f"its attribute block_size = {block_size} or output_dtype is not supported"
        )
    values = x.to(scale.dtype)
    if zero is not None:
        values = values - _along(zero, x, axis).to(scale.dtype)
    return values * _along(scale, x, axis)


def _along(values: Torch, x: Torch, axis: int) -> Torch:
    """Return a scale, or one for each element of an axis, in a shape that broadcasts."""
    if values.numel() == 1:
        return values.reshape(())
    shape = [1] * x.ndim
    shape[axis] = -1
    return values.reshape(shape)


QUANTIZED: Mapping[str, Convert] = {"QuantizeLinear": quantize, "DequantizeLinear": dequantize}
