"""Matrix products."""

from __future__ import annotations

from math import prod

from irgraph.ops.call import Call
from irgraph.ops.meaning import Axes, Meaning, Result
from irgraph.ops.operator import operators
from irgraph.ops.patterns import Rule, linear_sets, pattern
from irgraph.ops.shapes import broadcast_axes


def with_bias(first: str, second: str) -> Rule:
    """Return the rule of a product to which ``self`` is added, which broadcasts to the result."""

    def rule(call: Call) -> Meaning | None:
        bias, a, b = (call.tensor(name) for name in ("self", first, second))
        if bias is None or a is None or b is None or len(call.inputs) != 3:
            return None
        batch: Axes = ("b",) if a.rank == 3 else ()
        result: Axes = (*batch, "m", "n")
        if bias.rank > len(result) or {a.rank, b.rank} != {len(result)}:
            return None
        shape = (*a.shape[:-1], b.shape[-1])
        return Meaning(
            operands=(broadcast_axes(bias, shape, result), (*batch, "m", "k"), (*batch, "k", "n")),
            results=(Result(result),) * (len(call.outputs) + len(call.written)),
            linear=linear_sets(call, (f"self {first}", f"self {second}")),
        )

    return rule


def _matmul(call: Call) -> Meaning | None:
    """Return the meaning of ``matmul``, whose leading axes broadcast."""
    a, b = call.inputs[:2]
    if a.rank < 2 or b.rank < 2 or not call.outputs:
        return None
    shape = call.outputs[0].shape
    axes: Axes = (*(f"d{i}" for i in range(len(shape) - 2)), "m", "n")
    left = broadcast_axes(a, (*shape[:-1], a.shape[-1]), (*axes[:-1], "k"))
    right = broadcast_axes(b, (*shape[:-2], b.shape[-2], shape[-1]), (*axes[:-2], "k", "n"))
    linear = (frozenset({0}), frozenset({1}))
    return Meaning((left, right), (Result(axes),), linear=linear)


def product_flops(call: Call) -> int:
    """Return two operations for each element of the result and each term of its sum."""
    factors = [tensor for tensor in call.inputs if tensor.rank >= 2][-2:]
    return 2 * int(prod(factors[0].shape)) * int(factors[1].shape[-1])


def linear_flops(call: Call) -> int:
    """Return two operations for each element of the input and each output feature."""
    return 2 * int(prod(call.inputs[0].shape)) * int(call.inputs[1].shape[0])


def _matmul_flops(call: Call) -> int:
    return 2 * int(prod(call.outputs[0].shape)) * int(call.inputs[0].shape[-1])


MM = "m k, k n -> m n"
BMM = "b m k, b k n -> b m n"
LINEAR = "*x k, n k, n -> *x n"

_mm = pattern(MM, "self", "mat2")
_bmm = pattern(BMM, "self", "mat2")
_addmm = with_bias("mat1", "mat2")
_baddbmm = with_bias("batch1", "batch2")
_linear = pattern(LINEAR, "input bias", "weight bias")


OPERATORS = {
    **operators(_mm, "mm", text=MM, flops=product_flops),
    **operators(_bmm, "bmm", text=BMM, flops=product_flops),
    **operators(_addmm, "addmm", text=f"1|m 1|n, {MM}", flops=product_flops),
    **operators(_baddbmm, "baddbmm", text=f"1|b 1|m 1|n, {BMM}", flops=product_flops),
    **operators(_linear, "linear", text=LINEAR, flops=linear_flops),
    **operators(_matmul, "matmul", flops=_matmul_flops),
    **operators(pattern("m k, k -> m", "self", "vec"), "mv", text="m k, k -> m"),
    **operators(pattern("k, k -> ()", "self", "tensor"), "dot vdot", text="k, k -> ()"),
}
