"""Operators that compute element by element."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce

import torch
import torch.nn.functional as F  # noqa: N812

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.onnx.bind import Convert, Operand, Type, UnsupportedError
from irgraph.capture.onnx.model import dtype_of, type_word


def _unary(function: Callable[[Torch], Torch]) -> Convert:
    def convert(x: Torch) -> Torch:
        return function(x)

    return convert


def _binary(function: Callable[[Torch, Torch], Torch]) -> Convert:
    def convert(x: Operand, y: Operand) -> Torch:
        return function(x, y)

    return convert


def _tensors(function: Callable[[Torch, Torch], Torch]) -> Convert:
    def convert(x: Torch, y: Torch) -> Torch:
        return function(x, y)

    return convert


def _chain(function: Callable[[Torch, Torch], Torch]) -> Convert:
    def convert(*xs: Torch) -> Torch:
        return reduce(function, xs)

    return convert


def mean(*xs: Torch) -> Torch:
    """``Mean`` of tensors."""
    return reduce(torch.add, xs) / len(xs)


def divide(x: Torch, y: Operand) -> Torch:
    """``Div``, which rounds integers towards zero."""
    if x.is_floating_point():
        return torch.div(x, y)
    return torch.div(x, y, rounding_mode="trunc")


def power(x: Torch, y: Operand) -> Torch:
    """``Pow``, in the type of its base."""
    return _cast(torch.pow(x, y), x.dtype, 1)


def modulo(x: Torch, y: Operand, *, fmod: int = 0) -> Torch:
    """``Mod``: the remainder has the divisor's sign, or the dividend's."""
    return torch.fmod(x, y) if fmod else torch.remainder(x, y)


def shift(x: Torch, y: Torch, *, direction: str) -> Torch:
    """``BitShift``."""
    return (torch.bitwise_left_shift if direction == "LEFT" else torch.bitwise_right_shift)(x, y)


def clip(x: Torch, min_: Operand = None, max_: Operand = None) -> Torch:
    """``Clip`` between two bounds, one, or none."""
    if min_ is None and max_ is None:
        return x
    if isinstance(min_, torch.Tensor) != isinstance(max_, torch.Tensor) and None not in (
        min_,
        max_,
    ):
        return torch.clamp(torch.clamp(x, min=min_), max=max_)
    return torch.clamp(x, min=min_, max=max_)


def leaky_relu(x: Torch, *, alpha: float = 0.01) -> Torch:
    """``LeakyRelu``."""
    return F.leaky_relu(x, _shortest_decimal(alpha))


def elu(x: Torch, *, alpha: float = 1.0) -> Torch:
    """``Elu``."""
    return F.elu(x, _shortest_decimal(alpha))


def celu(x: Torch, *, alpha: float = 1.0) -> Torch:
    """``Celu``."""
    return F.celu(x, _shortest_decimal(alpha))


def selu(x: Torch, *, alpha: float = 1.67326319, gamma: float = 1.05070102) -> Torch:
    """``Selu``; torch's function only has the default parameters."""
    if abs(alpha - 1.67326319) < 1e-6 and abs(gamma - 1.05070102) < 1e-6:
        return F.selu(x)
    return torch.ops.aten.elu(x, _shortest_decimal(alpha), _shortest_decimal(gamma))


def hard_sigmoid(x: Torch, *, alpha: float = 0.2, beta: float = 0.5) -> Torch:
    """``HardSigmoid``; torch's function only has a slope of one sixth."""
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return F.hardsigmoid(x)
    return torch.clamp(x * _shortest_decimal(alpha) + _shortest_decimal(beta), 0, 1)


def swish(x: Torch, *, alpha: float = 1.0) -> Torch:
    """``Swish``."""
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(x * _shortest_decimal(alpha))


def gelu(x: Torch, *, approximate: str = "none") -> Torch:
    """``Gelu``, exact or by tanh."""
    return F.gelu(x, approximate=approximate)


def thresholded_relu(x: Torch, *, alpha: float = 1.0) -> Torch:
    """``ThresholdedRelu``."""
    return F.threshold(x, _shortest_decimal(alpha), 0.0)


def shrink(x: Torch, *, bias: float = 0.0, lambd: float = 0.5) -> Torch:
    """``Shrink``: hard or soft."""
    if bias == 0:
        return F.hardshrink(x, lambd)
    if bias == lambd:
        return F.softshrink(x, lambd)
    raise UnsupportedError(f"its attributes bias = {bias} and lambd = {lambd} differ")


def prelu(x: Torch, slope: Torch) -> Torch:
    """``PRelu`` with a slope for each channel, or any that broadcasts."""
    if x.ndim > 1 and slope.numel() == x.shape[1] and slope.ndim == x.ndim - 1:
        return F.prelu(x, slope.reshape(-1))
    return torch.where(x < 0, x * slope, x)


def is_inf(x: Torch, *, detect_negative: int = 1, detect_positive: int = 1) -> Torch:
    """``IsInf`` of either sign or both."""
    if detect_negative and detect_positive:
        return torch.isinf(x)
    if detect_negative:
        return torch.isneginf(x)
    return torch.isposinf(x) if detect_positive else torch.zeros_like(x, dtype=torch.bool)


def cast(x: Torch, *, to_: int, saturate: int = 1, round_mode: str = "up") -> Torch:
    """``Cast``: a copy, or nothing if the type does not change.

    ``round_mode`` only affects float8e8m0, which the IR does not have.
    """
    dtype = dtype_of(to_)
    if dtype is None:
        raise UnsupportedError(f"its attribute to = {type_word(to_)} is not a type of torch")
    return _cast(x, dtype, saturate)


def cast_like(x: Torch, like: Type, *, saturate: int = 1, round_mode: str = "up") -> Torch:
    """``CastLike``."""
    return _cast(x, like, saturate)


def _cast(x: Torch, dtype: Torch, saturate: int) -> Torch:
    """Convert to a type; torch saturates out-of-range values in e4m3fn, not in e5m2."""
    if dtype == x.dtype:
        return x
    if dtype == torch.float8_e4m3fn and not saturate:
        raise UnsupportedError("its attribute saturate = 0 is not supported for float8e4m3fn")
    if dtype == torch.float8_e5m2 and saturate:
        largest = torch.finfo(dtype).max
        x = _cast(x, torch.float32, 0).clamp(-largest, largest)
    return x.to(dtype)


def as_int64(indices: Torch) -> Torch:
    """Return indices as int64, which all torch functions accept."""
    return _cast(indices, torch.int64, 0)


def bit_cast(x: Torch, *, to_: int) -> Torch:
    """``BitCast``: the same bytes."""
    return x.view(dtype_of(to_))


def _shortest_decimal(value: float) -> float:
    """Return the shortest decimal that equals a number in f32, the type of attributes."""
    return float(f"{value:.7g}")


_NAMES = (
    "Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Abs", "Neg", "Erf", "Floor", "Ceil", "Round",
    "Reciprocal", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh",
    "Atanh", "Sign", "IsNaN",
)  # fmt: skip

ELEMENTWISE: Mapping[str, Convert] = {
    **{name: _unary(getattr(torch, name.lower())) for name in _NAMES},
    "Softplus": _unary(F.softplus),
    "Mish": _unary(F.mish),
    "HardSwish": _unary(F.hardswish),
    "Not": _unary(torch.logical_not),
    "BitwiseNot": _unary(torch.bitwise_not),
    "Softsign": _unary(F.softsign),
    "Det": _unary(torch.linalg.det),
    "Add": _binary(operator.add),
    "Sub": _binary(operator.sub),
    "Mul": _binary(operator.mul),
    "Equal": _binary(operator.eq),
    "Greater": _binary(operator.gt),
    "Less": _binary(operator.lt),
    "GreaterOrEqual": _binary(operator.ge),
    "LessOrEqual": _binary(operator.le),
    "And": _tensors(torch.logical_and),
    "Or": _tensors(torch.logical_or),
    "Xor": _tensors(torch.logical_xor),
    "BitwiseAnd": _tensors(torch.bitwise_and),
    "BitwiseOr": _tensors(torch.bitwise_or),
    "BitwiseXor": _tensors(torch.bitwise_xor),
    "Max": _chain(torch.maximum),
    "Min": _chain(torch.minimum),
    "Sum": _chain(torch.add),
    "Mean": mean,
    "Div": divide,
    "Pow": power,
    "Mod": modulo,
    "BitShift": shift,
    "Clip": clip,
    "LeakyRelu": leaky_relu,
    "Elu": elu,
    "Celu": celu,
    "Selu": selu,
    "HardSigmoid": hard_sigmoid,
    "Swish": swish,
    "Gelu": gelu,
    "ThresholdedRelu": thresholded_relu,
    "Shrink": shrink,
    "PRelu": prelu,
    "IsInf": is_inf,
    "Cast": cast,
    "CastLike": cast_like,
    "BitCast": bit_cast,
    "Where": lambda condition, x, y: torch.where(condition, x, y),
}
