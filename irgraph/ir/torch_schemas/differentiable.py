"""irgraph's fused ops that torch can differentiate: registered with torch, with their backward.

A rewrite that inserts one of them derives its backward by autograd, as for torch's ops.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from irgraph.ir.schema import OWN_SCHEMAS

if TYPE_CHECKING:
    import torch

DIFFERENTIABLE = ("bias_gelu",)
"""Ops with a backward, whose name is the op's with the suffix ``_backward``."""


def bias_gelu(
    input: torch.Tensor,  # noqa: A002  (the schema's name)
    bias: torch.Tensor,
    approximate: str = "none",
) -> torch.Tensor:
    """Return ``gelu(input + bias)``; the bias is broadcast to the input [..., N]."""
    from torch.nn import functional

    return functional.gelu(input + bias, approximate=approximate)


def bias_gelu_backward(
    grad: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  (the schema's name)
    bias: torch.Tensor,
    approximate: str = "none",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of input and bias, given that of ``gelu(input + bias)``."""
    import torch

    grad_input = torch.ops.aten.gelu_backward(grad, input + bias, approximate=approximate)
    return grad_input, grad_input.sum_to_size(bias.shape)


@cache
def register() -> None:
    """Register the ops with torch, as ``torch.ops.irgraph``."""
    import torch

    library = torch.library.Library("irgraph", "FRAGMENT")
    _LIBRARIES.append(library)
    for name in DIFFERENTIABLE:
        for base in (name, f"{name}_backward"):
            start = f"irgraph::{base}("
            library.define(next(s for s in OWN_SCHEMAS if s.startswith(start)).partition("::")[2])
            library.impl(base, globals()[base], "CompositeExplicitAutograd")
        library.impl(name, _autograd_kernel(name), "Autograd")


_LIBRARIES: list[Any] = []
"""References that prevent the registrations from being freed."""


def _autograd_kernel(name: str) -> Any:  # noqa: ANN401  (what autograd calls)
    """Return the autograd kernel of an op of two tensors; its node has the op's name."""
    import torch

    forwards = getattr(torch.ops.irgraph, name)
    backwards = getattr(torch.ops.irgraph, f"{name}_backward")

    def forward(ctx: Any, first: Any, second: Any, keywords: dict[str, Any]) -> Any:  # noqa: ANN401
        ctx.save_for_backward(first, second)
        ctx.named = keywords
        with torch._C._AutoDispatchBelowAutograd():
            return forwards(first, second, **keywords)

    def backward(ctx: Any, grad: Any) -> tuple[Any, Any, None]:  # noqa: ANN401
        return (*backwards(grad, *ctx.saved_tensors, **ctx.named), None)

    title = "".join(map(str.capitalize, name.split("_")))
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    node: Any = type(title, (torch.autograd.Function,), methods)
    return lambda first, second, **keywords: node.apply(first, second, keywords)
