"""Matrix products."""

from __future__ import annotations

from math import prod

from msgspec.structs import replace

from irgraph.ops.call import Call
from irgraph.ops.meaning import Axes, Meaning, Result
from irgraph.ops.operator import Flops, Trait, no_meaning, operators, uncounted
from irgraph.ops.patterns import Rule, all_results, linear_sets, pattern
from irgraph.ops.shapes import broadcast_axes, letters


def with_bias(first: str, second: str) -> Rule:
    """Return the rule of a product to which ``self`` is added, which broadcasts to the result."""

    def rule(call: Call) -> Meaning | None:
        bias = call.tensor("self")
        a = call.tensor(first)
        b = call.tensor(second)
        if bias is None or a is None or b is None or len(call.inputs) != 3:
            return None
        if a.rank != b.rank or a.rank not in (2, 3) or bias.rank > a.rank:
            return None
        batch = ("b",) if a.rank == 3 else ()
        result: Axes = (*batch, "m", "n")
        *rows, _ = a.shape
        shape = (*rows, b.shape[-1])
        of_bias = broadcast_axes(bias, shape, result)
        return Meaning(
            operands=(of_bias, (*batch, "m", "k"), (*batch, "k", "n")),
            results=all_results(call, result),
            linear=linear_sets(call, (f"self {first}", f"self {second}")),
        )

    return rule


def _matmul(call: Call) -> Meaning | None:
    """Return the meaning of ``matmul``, whose leading axes broadcast."""
    a, b = call.inputs[:2]
    if a.rank < 2 or b.rank < 2 or not call.outputs:
        return None
    result = call.outputs[0]
    if result.rank < 2:
        return None
    *outer, rows, columns = result.shape
    batch = letters(len(outer))
    terms = a.shape[-1]
    left_shape = (*outer, rows, terms)
    right_shape = (*outer, b.shape[-2], columns)
    left = broadcast_axes(a, left_shape, (*batch, "m", "k"))
    right = broadcast_axes(b, right_shape, (*batch, "k", "n"))
    return Meaning(
        operands=(left, right),
        results=(Result((*batch, "m", "n")),),
        linear=(frozenset({0}), frozenset({1})),
    )


def product_flops(first: str, second: str) -> Flops:
    """Return the count of a product: two operations for each element and each term of its sum."""

    def count(call: Call) -> int:
        pairs = prod(call.shape(first))
        columns = call.shape(second)[-1]
        return 2 * int(pairs) * int(columns)

    return count


def linear_flops(call: Call) -> int:
    """Return the operations of a product with a transposed weight."""
    pairs = prod(call.shape("input"))
    rows = call.shape("weight")[0]
    return 2 * int(pairs) * int(rows)


def _matmul_flops(call: Call) -> int:
    elements = call.outputs[0].numel
    terms = call.shape("self")[-1]
    return 2 * int(elements) * int(terms)


def without_sums(rule: Rule) -> Rule:
    """Return a rule of a product whose activation needs whole sums: it is linear in no operand."""

    def nonlinear(call: Call) -> Meaning | None:
        meaning = rule(call)
        return meaning and replace(meaning, linear=())

    return nonlinear


MM = "m k, k n -> m n"
BMM = "b m k, b k n -> b m n"
MV = "m k, k -> m"
DOT = "k, k -> ()"
ADDMM = f"1|m 1|n, {MM}"
BADDBMM = f"1|b 1|m 1|n, {BMM}"
LINEAR = "*x k, n k, n -> *x n"

_mm = pattern(MM, "self", "mat2")
_bmm = pattern(BMM, "self", "mat2")
_mv = pattern(MV, "self", "vec")
_dot = pattern(DOT, "self", "tensor")
_addmm = with_bias("mat1", "mat2")
_baddbmm = with_bias("batch1", "batch2")
_linear = pattern(LINEAR, "input bias", "weight bias")


_mm_flops = product_flops("self", "mat2")
_addmm_flops = product_flops("mat1", "mat2")
_baddbmm_flops = product_flops("batch1", "batch2")


OPERATORS = {
    **operators(_mm, "mm", text=MM, flops=_mm_flops, traits=[Trait.LAYER]),
    **operators(_bmm, "bmm", text=BMM, flops=_mm_flops),
    **operators(_addmm, "addmm", text=ADDMM, flops=_addmm_flops, traits=[Trait.LAYER]),
    **operators(_addmm, "addmm_", text=ADDMM, flops=_addmm_flops),
    **operators(_baddbmm, "baddbmm", in_place=True, text=BADDBMM, flops=_baddbmm_flops),
    **operators(without_sums(_addmm), "_addmm_activation", flops=_addmm_flops),
    **operators(_linear, "linear", text=LINEAR, flops=linear_flops, traits=[Trait.LAYER]),
    **operators(_matmul, "matmul", flops=_matmul_flops, traits=[Trait.LAYER]),
    **operators(no_meaning, "_scaled_mm", flops=_mm_flops),
    **operators(no_meaning, "addmv", flops=uncounted),
    **operators(no_meaning, "_grouped_mm", flops=uncounted, traits=[Trait.DATA]),
    **operators(_mv, "mv", text=MV, flops=uncounted),
    **operators(_dot, "dot vdot", text=DOT),
}
