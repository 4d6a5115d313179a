"""Reductions of axes, and ops along an axis."""

from __future__ import annotations

from irgraph.ir.tensor import Shape
from irgraph.ops.call import Call
from irgraph.ops.kinds.elements import by_element
from irgraph.ops.meaning import IN_FIRST, Axes, Meaning, Merged
from irgraph.ops.operator import Trait, operators
from irgraph.ops.patterns import Rule, linear_sets, new_results
from irgraph.ops.shapes import letters, replaced, with_ones, without


def reduction(
    *linear: str,
    mean: bool = False,
    power: str = "",
) -> Rule:
    """Return the rule of a reduction over the axes ``dim``.

    Args:
        linear: the arguments in which it is linear; if there are none, axes are mixed.
        mean: whether it divides by the size of the axes.
        power: the argument with the power, if it is a norm.
    """

    def rule(call: Call) -> Meaning | None:
        if len(call.inputs) != 1:
            return None
        axes = letters(call.inputs[0].rank)
        # most take an axis or a list; without one they reduce all axes
        chosen = call.axes("dim", len(axes))
        reduced = frozenset(axes[index] for index in chosen)
        norm = norm_power(call, power) if power else 0.0
        is_mixed = not linear and not norm
        return Meaning(
            operands=(axes,),
            results=new_results(call, _remaining(call, axes, chosen)),
            mixed=reduced if is_mixed else frozenset(),
            linear=linear_sets(call, linear),
            means=reduced if mean else frozenset(),
            power=norm,
        )

    return rule


def norm_power(call: Call, argument: str) -> float:
    """Return the power of a norm, 0 if it is none whose parts can be combined."""
    power = call.arguments.get(argument)
    if power is None:
        return 2.0
    if not isinstance(power, (int, float)):
        return 0.0
    return max(float(power), 0.0)


def _remaining(call: Call, axes: Axes, chosen: Shape) -> Axes:
    """Return the axes of a result, which may have reduced axes with one element."""
    if not call.flag("keepdim"):
        return without(axes, chosen)
    is_reduced = [index in chosen for index in range(len(axes))]
    return with_ones(axes, is_reduced)


_mixing = reduction()


def _extremum(call: Call) -> Meaning | None:
    """Return the meaning of ``max`` and ``min``: of two tensors by element, or along axes."""
    is_by_element = call.tensor("other") is not None
    return by_element(call) if is_by_element else _mixing(call)


def along(
    operand: str,
    *linear: str,
    dim: str = "dim",
    default: int = -1,
) -> Rule:
    """Return the rule of an op along one axis that changes no shape, such as ``softmax``.

    ``operand`` is the argument whose rank counts the axes.
    """

    def rule(call: Call) -> Meaning | None:
        tensor = call.tensor(operand)
        if tensor is None:
            return None
        rank = tensor.rank
        if any(other.rank != rank for other in (*call.inputs, *call.outputs)):
            return None
        axes = letters(rank)
        index = call.axis(dim, rank, default)
        return Meaning(
            operands=(axes,) * len(call.inputs),
            results=new_results(call, axes),
            mixed=frozenset(axes[index : index + 1]),
            linear=linear_sets(call, linear),
        )

    return rule


def moved(dims: str) -> Rule:
    """Return the rule of an op that moves elements along axes; along all if it names none."""

    def rule(call: Call) -> Meaning:
        axes = letters(call.inputs[0].rank)
        chosen = call.axes(dims, len(axes))
        return Meaning(
            operands=(axes,),
            results=new_results(call, axes),
            mixed=frozenset(axes[index] for index in chosen),
            linear=IN_FIRST,
        )

    return rule


def _top(call: Call) -> Meaning | None:
    """Return the meaning of ``topk``: the largest elements along an axis, and their indices."""
    shape = call.inputs[0].shape
    axes = letters(len(shape))
    index = call.axis("dim", len(shape), -1)
    size = shape[index] if shape else 1
    if call.number("k", 0) > size:
        return None
    top = replaced(axes, index, "k") if shape else axes
    sorted_axis = axes[index : index + 1]
    return Meaning(
        operands=(axes,),
        results=new_results(call, top),
        mixed=frozenset({"k", *sorted_axis}),
        arguments={("k", -1): "k"},
        bounded=frozenset({"k", *sorted_axis}),
    )


def _gated(call: Call) -> Meaning | None:
    """Return the meaning of ``glu``: one half of an axis scaled by the other's sigmoid."""
    operand = call.tensor("self")
    if operand is None or not operand.rank:
        return None
    index = call.axis("dim", operand.rank, -1)
    if operand.shape[index] % 2:
        return None
    axes = letters(operand.rank)
    halves = Merged(("half", axes[index]))
    joined = replaced(axes, index, halves)
    is_gradient = call.tensor("grad_output") is not None
    return Meaning(
        operands=(axes, joined) if is_gradient else (joined,),
        results=new_results(call, joined if is_gradient else axes),
        mixed=frozenset({"half"}),
        linear=linear_sets(call, ("grad_output",)),
        fixed=frozenset({"half"}),
        sizes={"half": 2},
    )


OPERATORS = {
    **operators(reduction("self"), "sum nansum"),
    **operators(reduction("self", mean=True), "mean"),
    **operators(
        reduction(),
        "amax amin prod var std var_mean std_mean any all "
        "argmax argmin median nanmedian count_nonzero aminmax",
    ),
    **operators(reduction(), "logsumexp", traits=[Trait.ROUNDING]),
    **operators(reduction(power="p"), "norm"),
    **operators(reduction(power="ord"), "linalg_vector_norm"),
    **operators(_extremum, "max min"),
    **operators(along("self", "self", default=0), "cumsum", traits=[Trait.SCAN]),
    **operators(along("self", "self", default=0), "cumsum_"),
    **operators(moved("dims"), "flip roll"),
    **operators(along("self", default=0), "cumprod logcumsumexp cummax cummin"),
    **operators(along("self"), "softmax log_softmax sort argsort"),
    **operators(along("self"), "_softmax _log_softmax", traits=[Trait.ROUNDING]),
    **operators(
        along("grad_output", "grad_output"), "_softmax_backward_data _log_softmax_backward_data"
    ),
    **operators(_top, "topk"),
    **operators(_gated, "glu glu_backward"),
}
