"""Recurrent layers, as cuDNN runs them: samples are independent, all else is mixed."""

from __future__ import annotations

from math import prod

from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call, InvalidCallError
from irgraph.ops.meaning import Axes, Meaning, Result
from irgraph.ops.operator import Trait, operators
from irgraph.ops.patterns import linear_sets
from irgraph.ops.shapes import opaque, replaced


def _layers(call: Call) -> Meaning | None:
    """Return the meaning of layers over sequences of equal length, and of their gradients."""
    data = call.tensor("input")
    if data is None or data.rank != 3 or call.numbers("batch_sizes"):
        return None
    axis = 0 if call.flag("batch_first") else 1
    samples = data.shape[axis]

    def of(tensor: Tensor) -> Axes:
        # states are [layers, samples, units], whatever the order of the data
        is_data = tensor.shape[:2] == data.shape[:2]
        index = axis if is_data else 1
        if tensor.rank != 3 or tensor.shape[index] != samples:
            return opaque(tensor)
        return replaced(opaque(tensor), index, "b")

    operands = [of(tensor) for tensor in call.inputs]
    for index in call.positions("weight"):
        operands[index] = opaque(call.inputs[index])
    results: list[Result] = []
    for tensor in call.outputs:
        is_workspace = tensor.rank == 1 and not call.is_gradient
        results.append(Result(of(tensor), is_workspace=is_workspace))
    gradients = ("grad_output grad_hy grad_cy",)
    has_dropout = bool(call.arguments.get("dropout"))
    return Meaning(
        operands=tuple(operands),
        results=tuple(results),
        # gradients of weights are sums over samples
        summed=frozenset({"b"} if call.is_gradient else ()),
        linear=linear_sets(call, gradients) if call.is_gradient else (),
        random=has_dropout and call.flag("train"),
        workspaces=call.positions("weight_buf", "reserve"),
        sizes_by_torch=True,
    )


def _flops(call: Call) -> int:
    """Return the operations of each matrix of all layers with each row of each time step.

    In the gradient once for the input, which cuDNN always computes, and once for the weights.
    """
    weights = [call.inputs[index] for index in call.spans["weight"]]
    elements = sum(weight.numel for weight in weights if weight.rank > 1)
    rows = prod(call.shape("input")[:-1])
    count = 2 * int(rows) * int(elements)
    if not call.is_gradient:
        return count
    mask = call.arguments.get("output_mask")
    if not isinstance(mask, tuple):
        raise InvalidCallError("output_mask is not recorded")
    has_weights = bool(mask[3])
    return count * (1 + has_weights)


OPERATORS = {
    **operators(
        _layers,
        "_cudnn_rnn _cudnn_rnn_backward",
        text="_ b _, ... -> _ b _",
        flops=_flops,
        traits=[Trait.RESERVE],
    ),
}
