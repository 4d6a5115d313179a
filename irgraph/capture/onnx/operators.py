"""ONNX operators that compute element by element, or reduce: their ops in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from irgraph.capture.onnx.build import Site
from irgraph.ir.dtypes import FROM_ONNX
from irgraph.ir.op import Value
from irgraph.ir.tensor import DType, Tensor

Emit: TypeAlias = Callable[[Site], bool | None]
"""Adds the ops of a node; ``False`` where this form of it has no counterpart."""

UNARY: Mapping[str, str] = {
    **{name: name.lower() for name in (
        "Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Abs", "Neg", "Erf", "Floor", "Ceil",
        "Round", "Reciprocal", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh",
        "Asinh", "Acosh", "Atanh", "Softplus", "Mish", "HardSwish", "Sign", "IsNaN", "IsInf",
        "Selu",
    )},
    "Not": "logical_not", "BitwiseNot": "bitwise_not", "Softsign": "softsign",
}  # fmt: skip

BINARY: Mapping[str, str] = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow", "Equal": "eq",
    "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le",
    "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor", "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor", "Mod": "remainder",
    "PRelu": "_prelu_kernel",
}  # fmt: skip

MIRRORED = {"Add": "add", "Mul": "mul", "Sub": "rsub", "Equal": "eq", "Greater": "lt", "Less": "gt"}
"""What takes the first operand as a number instead of the second."""

NUMBERS = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Equal", "Greater", "GreaterOrEqual",
                     "Less", "LessOrEqual", "Mod"})  # fmt: skip
"""Operators whose second operand may be a number."""

SCALED: Mapping[str, tuple[str, tuple[tuple[str, str, float], ...]]] = {
    "LeakyRelu": ("leaky_relu", (("alpha", "negative_slope", 0.01),)),
    "Elu": ("elu", (("alpha", "alpha", 1.0),)),
    "Celu": ("celu", (("alpha", "alpha", 1.0),)),
    "HardSigmoid": ("hardsigmoid", ()),
}
"""Operators with a parameter: its names here and there, and torch's default."""

REDUCE: Mapping[str, str] = {
    "ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "amax", "ReduceMin": "amin",
    "ReduceL2": "linalg_vector_norm", "ReduceLogSumExp": "logsumexp", "ReduceProd": "prod",
}  # fmt: skip


def unary(site: Site) -> None:
    """One operand, one result of its shape."""
    site.emit(UNARY[site.node.op], (site.input(0),), (site.out(),))


def binary(site: Site) -> None:
    """Two operands that broadcast; a constant of one element is a number."""
    kind = site.node.op
    name = BINARY[kind]
    number = site.scalar(1)
    if number is not None and kind in NUMBERS:
        attribute = "exponent" if kind == "Pow" else "other"
        site.emit(name, (site.input(0),), (site.out(),), **{attribute: number})
        return
    first = site.scalar(0)
    if first is not None and kind in MIRRORED:
        site.emit(MIRRORED[kind], (site.input(1),), (site.out(),), other=first)
        return
    site.emit(name, (site.input(0), site.input(1)), (site.out(),))


def extreme(site: Site) -> None:
    """``Max`` and ``Min`` of any number of operands."""
    name = "maximum" if site.node.op == "Max" else "minimum"
    _chain(site, name)


def total(site: Site) -> None:
    """``Sum`` of any number of operands."""
    _chain(site, "add")


def _chain(site: Site, name: str) -> None:
    count = len(site.node.inputs)
    if count == 1:
        site.hand_on(site.input(0))
        return
    so_far = site.input(0)
    for i in range(1, count):
        last = i == count - 1
        made = site.out() if last else site.build.fresh("part", so_far.dtype, site.shape())
        site.emit(name, (so_far, site.input(i)), (made,))
        so_far = made


def scaled(site: Site) -> None:
    """An activation with parameters."""
    name, parameters = SCALED[site.node.op]
    said = {there: float(site.attribute(here, default)) for here, there, default in parameters}
    defaults = {there: default for _, there, default in parameters}
    kept: dict[str, Value] = {k: v for k, v in said.items() if v != defaults[k]}
    site.emit(name, (site.input(0),), (site.out(),), **kept)


def gelu(site: Site) -> None:
    """``Gelu``, exact or by tanh."""
    how = site.attribute("approximate", "none")
    said: dict[str, Value] = {} if how == "none" else {"approximate": str(how)}
    site.emit("gelu", (site.input(0),), (site.out(),), **said)


def cast(site: Site) -> bool | None:
    """``Cast`` and ``CastLike``: a copy, or nothing where the type stays."""
    x, made = site.input(0), site.build.typed(site.node.outputs[0])[0]
    if site.node.op == "Cast" and FROM_ONNX.get(site.attribute("to")) is None:
        return False
    if made == x.dtype:
        site.hand_on(x)
        return None
    site.emit("to", (x,), (site.out(),), dtype=DType(made))
    return None


def clip(site: Site) -> bool | None:
    """``Clip`` between numbers."""
    low, high = site.scalar(1), site.scalar(2)
    if (site.given(1) and low is None) or (site.given(2) and high is None):
        return False
    said: dict[str, Value] = {"min": low} if low is not None else {}
    if high is not None:
        said["max"] = high
    site.emit("clamp", (site.input(0),), (site.out(),), **said)
    return None


def where(site: Site) -> None:
    """``Where`` of three tensors."""
    site.emit("where", (site.input(0), site.input(1), site.input(2)), (site.out(),))


def reduced(site: Site) -> None:
    """Reductions along axes, given as an attribute or an input; all axes if none are."""
    x = site.input(0)
    axes = site.list(1, "axes")
    if not axes:
        if site.attribute("noop_with_empty_axes", 0):
            site.hand_on(x)
            return
        axes = tuple(range(x.rank))
    dims = tuple(axis % x.rank for axis in axes)
    name = REDUCE[site.node.op]
    keep = {"keepdim": True} if site.attribute("keepdims", 1) else {}
    if name == "prod":
        _products(site, x, dims)
        return
    site.emit(name, (x,), (site.out(),), dim=dims, **keep)


def _products(site: Site, x: Tensor, dims: tuple[int, ...]) -> None:
    """Products take one axis at a time in torch."""
    for i, dim in enumerate(sorted(dims, reverse=True)):
        last = i == len(dims) - 1
        shape = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
        made = site.build.fresh("part", x.dtype, shape) if not last else site.out()
        keep = {} if last and made.rank < x.rank else {"keepdim": True}
        site.emit("prod", (x,), (made,), dim=dim, **keep)
        x = made


def arg(site: Site) -> None:
    """``ArgMax`` and ``ArgMin``."""
    x = site.input(0)
    keep = {"keepdim": True} if site.attribute("keepdims", 1) else {}
    axis = int(site.attribute("axis", 0)) % max(x.rank, 1)
    site.emit(site.node.op.lower(), (x,), (site.out(),), dim=axis, **keep)


def softmax(site: Site) -> None:
    """``Softmax`` and ``LogSoftmax`` along one axis."""
    x = site.input(0)
    name = "_softmax" if site.node.op == "Softmax" else "_log_softmax"
    axis = int(site.attribute("axis", -1)) % max(x.rank, 1)
    site.emit(name, (x,), (site.out(),), dim=axis, half_to_float=False)


def cumsum(site: Site) -> bool | None:
    """``CumSum`` along a constant axis."""
    axis = site.scalar(1)
    if axis is None:
        return False
    x = site.input(0)
    site.emit("cumsum", (x,), (site.out(),), dim=int(axis) % x.rank)
    return None


def trilu(site: Site) -> None:
    """``Trilu``: the upper or lower triangle."""
    name = "triu" if site.attribute("upper", 1) else "tril"
    diagonal = site.scalar(1)
    said: dict[str, Value] = {"diagonal": int(diagonal)} if diagonal else {}
    site.emit(name, (site.input(0),), (site.out(),), **said)


ARITHMETIC: Mapping[str, Emit] = {
    **dict.fromkeys(UNARY, unary),
    **dict.fromkeys(BINARY, binary),
    **dict.fromkeys(SCALED, scaled),
    **dict.fromkeys(REDUCE, reduced),
    "Max": extreme, "Min": extreme, "Sum": total, "Gelu": gelu, "Cast": cast, "CastLike": cast,
    "Clip": clip, "Where": where, "ArgMax": arg, "ArgMin": arg, "Softmax": softmax,
    "LogSoftmax": softmax, "CumSum": cumsum, "Trilu": trilu,
}  # fmt: skip
"""What adds the ops of each operator."""
