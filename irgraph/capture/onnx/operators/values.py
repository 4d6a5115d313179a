"""Operators that create values: constants, shapes, ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.onnx.bind import Constant, Convert, Ints, UnsupportedError
from irgraph.capture.onnx.model import dtype_of, tensor_of


def constant(
    *,
    value: Any = None,  # noqa: ANN401  (a TensorProto)
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
) -> Torch:
    """``Constant`` of any numeric kind."""
    if value is not None:
        try:
            return tensor_of(value)
        except TypeError as error:
            raise UnsupportedError(str(error)) from None
    if value_int is not None or value_ints is not None:
        return torch.tensor(value_ints if value_int is None else value_int, dtype=torch.int64)
    return torch.tensor(value_floats if value_float is None else value_float, dtype=torch.float32)


def shape(x: Torch, *, start: int = 0, end: int | None = None) -> Torch:
    """``Shape``: a constant, as all shapes are known."""
    return torch.tensor(list(x.shape)[start:end], dtype=torch.int64, device="cpu")


def size(x: Torch) -> Torch:
    """``Size``: a constant."""
    return torch.tensor(math.prod(x.shape), dtype=torch.int64, device="cpu")


def constant_of_shape(shape: Ints, *, value: Any = None) -> Torch:  # noqa: ANN401
    """``ConstantOfShape``."""
    fill = torch.zeros(1) if value is None else tensor_of(value)
    return torch.full(tuple(shape), fill.item(), dtype=fill.dtype)


def arange(start: Constant, limit: Constant, delta: Constant, *, stash_type: int = 1) -> Torch:
    """``Range``."""
    if stash_type != 1 and start.dtype in (torch.float16, torch.bfloat16):
        raise UnsupportedError(f"its attribute stash_type = {stash_type} is not supported")
    first, last, step = (bound.elements[0] for bound in (start, limit, delta))
    return torch.arange(first, last, step, dtype=start.dtype)


def eye(x: Torch, *, dtype: int = 0, k: int = 0) -> Torch:
    """``EyeLike``."""
    kind = dtype_of(dtype) if dtype else x.dtype
    if k == 0:
        return torch.eye(*x.shape, dtype=kind)
    return torch.ones(tuple(x.shape), dtype=kind).triu(k).tril(k)


VALUES: Mapping[str, Convert] = {
    "Constant": constant, "Shape": shape, "Size": size, "ConstantOfShape": constant_of_shape,
    "Range": arange, "EyeLike": eye,
}  # fmt: skip
