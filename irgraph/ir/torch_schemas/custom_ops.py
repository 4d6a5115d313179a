"""Ops that torch lacks: irgraph's own and packages' ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from msgspec import Struct

from irgraph.providers import CUSTOM_OPS, module_for

Torch: TypeAlias = Any
"""An object of torch's."""


class DifferentiatedCall(Struct, frozen=True):
    """A call whose gradients autograd requests.

    Attributes:
        arguments: values by the schema's names.
        results: results of the call, in order.
        grads: gradients of the results, in order; ``None`` for a gradient of zeros.
        needs: names of arguments that need a gradient; of a list, with the positions that do.
    """

    arguments: Mapping[str, Torch]
    results: Sequence[Torch]
    grads: Sequence[Torch]
    needs: Mapping[str, Sequence[int]]


Gradient: TypeAlias = Callable[[DifferentiatedCall], Mapping[str, Torch]]
"""Returns gradients by argument: a tensor or ``None``, for a list one for each position."""


class CustomOp(Struct, frozen=True):
    """The part of an op's declaration that torch's registry has for its own ops.

    Attributes:
        schema: in torch's notation.
        reference: computes the results with torch, from arguments by the schema's names. It defines
            the op.
        backward: returns the gradients; ``None`` if the op cannot be differentiated.
        types: returns results of the right types on torch's meta device; ``None`` if the reference
            does.
        tolerance: largest difference by rounding inside the op, relative to the largest element of
            a result.
        counted: whether the host computes arguments that differ from step to step.
    """

    schema: str
    reference: Callable[..., Torch]
    backward: Gradient | None = None
    types: Callable[..., Torch] | None = None
    tolerance: float = 0.0
    counted: bool = False

    @property
    def torch_name(self) -> str:
        """Torch's name, such as ``irgraph::bias_gelu``."""
        return self.schema.partition("(")[0].strip()

    @property
    def name(self) -> str:
        """The name in models, such as ``irgraph.bias_gelu``."""
        return self.torch_name.replace("::", ".")


@cache
def custom_ops() -> Mapping[str, CustomOp]:
    """Return all declared ops by their names in models."""
    declared: Mapping[str, CustomOp] = module_for(CUSTOM_OPS).custom_ops()
    return declared


@cache
def package_ops() -> frozenset[str]:
    """Return the names of those ops that installed packages declare."""
    names: frozenset[str] = module_for(CUSTOM_OPS).package_ops()
    return names
