"""torch's products in tf32: factors rounded, sums in f32."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from irgraph.ir.tf32 import FIRST_FACTORS
from irgraph.ops.custom import custom_operator
from irgraph.ops.kinds import products
from irgraph.ops.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

DROPPED_BITS = 13
"""Number of bits by which the mantissa of f32 is longer than tf32's."""


TOLERANCE = 2.0**-9
"""Largest difference of a sum of products, relative to the largest: each factor is off by 2^-11."""


def round_to_tf32(value: Tensor) -> Tensor:
    """Round f32 to 10 bits of mantissa: to nearest, ties to even."""
    import torch

    bits = value.view(torch.int32)
    half = (1 << DROPPED_BITS - 1) - 1 + (bits >> DROPPED_BITS & 1)
    nearest = (bits + half & -1 << DROPPED_BITS).view(torch.float32)
    return torch.where(value.isnan(), value, nearest)


def _rounded_product(name: str) -> Callable[..., Any]:
    """Return torch's product with factors rounded to tf32 and sums in f32."""
    first = FIRST_FACTORS[name]

    def multiply(**arguments: Tensor) -> Any:  # noqa: ANN401  (a torch tensor)
        factors = list(arguments)[first : first + 2]
        rounded = {factor: round_to_tf32(arguments[factor]) for factor in factors}
        return _plain_product(name)(**arguments | rounded)

    return multiply


def _plain_product(name: str) -> Callable[..., Any]:
    """Return torch's product, whose results have the same types."""

    def multiply(**arguments: Tensor) -> Any:  # noqa: ANN401  (a torch tensor)
        import torch

        return getattr(torch.ops.aten, name).default(**arguments)

    return multiply


ARGUMENTS = {
    "linear": "Tensor input, Tensor weight, Tensor? bias=None",
    "addmm": "Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1",
    "mm": "Tensor self, Tensor mat2",
    "bmm": "Tensor self, Tensor mat2",
    "baddbmm": "Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1",
}
"""Arguments of torch's products that have a form in tf32."""


def _form(name: str) -> dict[str, Operator]:
    plain = products.OPERATORS[f"aten.{name}"]
    return custom_operator(
        f"irgraph::{name}_tf32({ARGUMENTS[name]}) -> Tensor",
        plain.rule,
        _rounded_product(name),
        types=_plain_product(name),
        tolerance=TOLERANCE,
        text=plain.text,
        flops=plain.flops,
    )


OPERATORS = {
    full_name: operator for name in FIRST_FACTORS for full_name, operator in _form(name).items()
}
