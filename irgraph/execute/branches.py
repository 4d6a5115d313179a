"""Sides of the branches of ops: regions in which an op computes by different rules.

An op compares an operand with a constant or with another operand, or looks for nan and infinities.
A comparison can only reveal mistakes in regions that the drawn values reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from irgraph.execute.torch_values import Torch

Arguments = Mapping[str, Torch]
"""Torch's values of a call's arguments, by the names of its schema."""

Region = tuple[str, Torch]
"""Name of a region, and whether each element is in it."""

Regions = Callable[[Arguments], Iterator[Region]]


MAX_FILL = 1e30
"""Magnitude of masks' values below which no operand is expected."""


def _around(name: str, bound: object, distance: Torch, *, tie: bool) -> Iterator[Region]:
    """Yield the regions below and above a bound, and at it if ties matter."""
    text = f"{bound:g}" if isinstance(bound, (int, float)) else f"%{name}"
    yield f"below {text}", distance < 0
    yield f"above {text}", distance > 0
    if tie:
        yield f"at {text}", distance == 0


def _bounds(*names: str | float, operand: str = "self", tie: bool = False) -> Regions:
    """Return the regions around bounds: numbers, or arguments that may be absent."""

    def regions(arguments: Arguments) -> Iterator[Region]:
        for name in names:
            bound = arguments.get(name) if isinstance(name, str) else name
            if bound is not None:
                yield from _around(str(name), bound, arguments[operand] - bound, tie=tie)

    return regions


def _symmetric(name: str, default: float, operand: str = "self", other: str = "") -> Regions:
    """Return the regions around a bound and its negative."""

    def regions(arguments: Arguments) -> Iterator[Region]:
        bound = arguments.get(name, default)
        value = arguments[operand] - arguments[other] if other else arguments[operand]
        for signed in (-bound, bound):
            yield from _around(name, signed, value - signed, tie=False)

    return regions


def _threshold_gradient(arguments: Arguments) -> Iterator[Region]:
    """Yield the regions of results of a ReLU, which are never below its threshold."""
    distance = arguments["self"] - arguments["threshold"]
    yield "at the threshold", distance == 0
    yield "above the threshold", distance > 0


def _comparison(arguments: Arguments) -> Iterator[Region]:
    value, other = arguments["self"], arguments["other"]
    if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
        return
    yield from _around("other", other, value - other, tie=True)


def _equality(arguments: Arguments) -> Iterator[Region]:
    equal = arguments["self"] == arguments["other"]
    yield "equal", equal
    yield "unequal", ~equal


def _softplus(arguments: Arguments) -> Iterator[Region]:
    threshold, beta = arguments.get("threshold", 20), arguments.get("beta", 1)
    yield from _around("threshold", threshold, arguments["self"] * beta - threshold, tie=False)


def _truth(operand: str) -> Regions:
    def regions(arguments: Arguments) -> Iterator[Region]:
        condition = arguments[operand] != 0
        yield f"%{operand} true", condition
        yield f"%{operand} false", ~condition

    return regions


def _fill(arguments: Arguments) -> Iterator[Region]:
    yield from _truth("mask")(arguments)
    value, operand = arguments["value"], arguments["self"]
    if isinstance(value, (int, float)) and 0 < -value < MAX_FILL:
        rows = operand.masked_fill(arguments["mask"], -torch.inf)
        yield f"rows below {value:g}", rows.amax(-1) < value if rows.dim() else rows < value


def _special(*names: str) -> Regions:
    tests = {
        "nan": torch.isnan,
        "inf": lambda value: value == torch.inf,
        "-inf": lambda value: value == -torch.inf,
    }

    def regions(arguments: Arguments) -> Iterator[Region]:
        if arguments["self"].is_floating_point():
            for name in names:
                yield name, tests[name](arguments["self"])

    return regions


def _order(default: int | None = None) -> Regions:
    """Return the region of equal elements of a row; by default rows are along an axis, or all."""

    def regions(arguments: Arguments) -> Iterator[Region]:
        if "other" in arguments:
            yield from _comparison(arguments)
            return
        value, dim = arguments["self"], arguments.get("dim", default)
        if isinstance(dim, (list, tuple)):
            dim = dim[0] if len(dim) == 1 else None
        rows = value.flatten() if dim is None or not value.dim() else value.movedim(dim, -1)
        if rows.shape[-1] > 1:
            ordered = rows.sort(-1).values
            yield "ties", (ordered[..., 1:] == ordered[..., :-1]) & ordered[..., 1:].isfinite()

    return regions


def _quotient(arguments: Arguments) -> Iterator[Region]:
    """Yield the signs of quotients that are rounded: down and towards zero differ below zero."""
    value, other = (torch.as_tensor(arguments[name]) for name in ("self", "other"))
    divisor = other.where(other != 0, torch.ones_like(other))
    inexact = torch.remainder(value, divisor) != 0
    negative = (value < 0) != (other < 0)
    yield "below 0 with a remainder", negative & inexact
    yield "above 0 with a remainder", ~negative & inexact


def _division(arguments: Arguments) -> Iterator[Region]:
    if arguments.get("rounding_mode") is not None:
        yield from _quotient(arguments)


def _product_sum(arguments: Arguments) -> Iterator[Region]:
    """Yield the signs of a sum with a product, to which a ReLU is applied."""
    if not arguments.get("use_gelu"):
        product = arguments["mat1"] @ arguments["mat2"] * arguments.get("alpha", 1)
        total = arguments["self"] * arguments.get("beta", 1) + product
        yield from _around("", 0, total, tie=False)


def _ignored(arguments: Arguments) -> Iterator[Region]:
    index = arguments.get("ignore_index", -100)
    ignored = arguments["target"] == index
    yield f"class {index}", ignored
    yield f"other classes than {index}", ~ignored


def _half(arguments: Arguments) -> Iterator[Region]:
    value = arguments["self"]
    if value.is_floating_point() and not arguments.get("decimals"):
        yield "halfway between integers", (value - value.floor()) == 0.5


REGIONS: Mapping[str, Regions] = {
    "relu": _bounds(0),
    "threshold": _bounds("threshold", tie=True),
    "threshold_backward": _threshold_gradient,
    "clamp": _bounds("min", "max"),
    "clamp_min": _bounds("min"),
    "clamp_max": _bounds("max"),
    "hardtanh": _bounds("min_val", "max_val"),
    "hardtanh_backward": _bounds("min_val", "max_val", tie=True),
    "relu6": _bounds(0, 6),
    "hardswish": _bounds(-3, 3),
    "hardswish_backward": _bounds(-3, 3),
    "hardsigmoid": _bounds(-3, 3),
    "hardsigmoid_backward": _bounds(-3, 3),
    "leaky_relu": _bounds(0),
    "leaky_relu_backward": _bounds(0, tie=True),
    **dict.fromkeys(("elu", "celu", "selu"), _bounds(0)),
    **dict.fromkeys(("abs", "sign", "sgn"), _bounds(0, tie=True)),
    **dict.fromkeys(("gt", "ge", "lt", "le"), _comparison),
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin"), _comparison),
    **dict.fromkeys(("eq", "ne"), _equality),
    **dict.fromkeys(("prelu", "_prelu_kernel"), _bounds(0)),
    "_prelu_kernel_backward": _bounds(0, tie=True),
    **dict.fromkeys(("addmm_relu", "_addmm_activation"), _product_sum),
    "softplus": _softplus,
    "softplus_backward": _softplus,
    "softshrink": _symmetric("lambd", 0.5),
    "hardshrink": _symmetric("lambd", 0.5),
    "huber_loss": _symmetric("delta", 1.0, other="target"),
    "huber_loss_backward": _symmetric("delta", 1.0, other="target"),
    "smooth_l1_loss": _symmetric("beta", 1.0, other="target"),
    "smooth_l1_loss_backward": _symmetric("beta", 1.0, other="target"),
    "where": _truth("condition"),
    "masked_fill": _fill,
    "logical_not": _truth("self"),
    "isnan": _special("nan"),
    "isinf": _special("inf", "-inf"),
    "isfinite": _special("nan", "inf", "-inf"),
    "nan_to_num": _special("nan", "inf", "-inf"),
    "nansum": _special("nan"),
    **dict.fromkeys(("max", "min", "argmax", "argmin", "amax", "amin"), _order()),
    **dict.fromkeys(("median", "nanmedian", "cummax", "cummin"), _order()),
    **dict.fromkeys(("sort", "argsort", "topk", "kthvalue", "mode"), _order(-1)),
    "div": _division,
    **dict.fromkeys(("floor_divide", "remainder", "fmod"), _quotient),
    "nll_loss_forward": _ignored,
    "nll_loss2d_forward": _ignored,
    "cross_entropy_loss": _ignored,
    "round": _half,
    "mm_relu_backward": _truth("output"),
}
"""Regions of ops by the last part of the name, without the underscore of ops in place."""


def regions_of(base: str, arguments: Arguments) -> Iterator[Region]:
    """Yield the regions of a call before it runs."""
    regions = REGIONS.get(base if base in REGIONS else base.rstrip("_"))
    if regions is None:
        return
    first = arguments.get("self")
    if isinstance(first, torch.Tensor) and first.is_complex():
        return
    yield from regions(arguments)
