"""Recurrent layers, as cuDNN runs them: samples are independent, all else is mixed."""

from __future__ import annotations

from math import prod

from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call, InvalidCallError
from irgraph.ops.meaning import OPAQUE, Axes, Meaning, Result
from irgraph.ops.operator import Trait, operators
from irgraph.ops.patterns import linear_sets


def _layers(call: Call) -> Meaning | None:
    """Return the meaning of layers over sequences of equal length, and of their gradients."""
    data = call.tensor("input")
    if data is None or data.rank != 3 or call.numbers("batch_sizes"):
        return None
    index = 0 if call.flag("batch_first") else 1
    samples = data.shape[index]

    def of(tensor: Tensor) -> Axes:
        # states are [layers, samples, units], whatever the order of the data
        position = index if tensor.shape[:2] == data.shape[:2] else 1
        if tensor.rank == 3 and tensor.shape[position] == samples:
            axes = [OPAQUE] * 3
            axes[position] = "b"
            return tuple(axes)
        return (OPAQUE,) * tensor.rank

    weights = call.spans.get("weight", range(0))
    operands = tuple(
        (OPAQUE,) * tensor.rank if i in weights else of(tensor)
        for i, tensor in enumerate(call.inputs)
    )
    draws = bool(call.arguments.get("dropout")) and call.flag("train")
    is_gradient = call.op.base.endswith("_backward")
    workspaces = (call.spans.get(name, range(0)) for name in ("weight_buf", "reserve"))
    return Meaning(
        operands=operands,
        results=tuple(
            Result(of(t), None, None, t.rank == 1 and not is_gradient) for t in call.outputs
        ),
        # gradients of weights are sums over samples
        summed=frozenset({"b"} if is_gradient else ()),
        linear=linear_sets(call, ("grad_output grad_hy grad_cy",)) if is_gradient else (),
        random=draws,
        workspaces=frozenset(index for span in workspaces for index in span),
        sizes_by_torch=True,
    )


def _flops(call: Call) -> int:
    """Return the operations of each matrix of all layers with each row of each time step.

    In the gradient once for the input, which cuDNN always computes, and once for the weights.
    """
    matrices = (call.inputs[i] for i in call.spans["weight"])
    elements = sum(matrix.numel for matrix in matrices if matrix.rank > 1)
    count = 2 * int(prod(call.shape("input")[:-1])) * int(elements)
    mask = call.arguments.get("output_mask")
    if not call.op.base.endswith("_backward"):
        return count
    if not isinstance(mask, tuple):
        raise InvalidCallError("output_mask is not recorded")
    return count * (1 + bool(mask[3]))


OPERATORS = {
    **operators(
        _layers,
        "_cudnn_rnn _cudnn_rnn_backward",
        text="_ b _, ... -> _ b _",
        flops=_flops,
        traits=[Trait.RESERVE],
    ),
}
