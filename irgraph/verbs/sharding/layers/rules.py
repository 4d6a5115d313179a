"""Placement rules of ops on a rank with parts of tensors: placements of operands and results.

An op without a rule requires full tensors. This is legal for every op: split tensors are gathered
before it, and parts of a sum are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from irgraph.ir.calls import is_pointwise
from irgraph.ir.effects import written_by
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ir.tf32 import plain_name
from irgraph.verbs.sharding.layers.placement import (
    PART,
    SAME,
    WHOLE,
    CallPlacement,
    LayerCall,
    LayerPlacement,
    split_along,
)
from irgraph.verbs.sharding.layers.views import VIEWS
from irgraph.verbs.sharding.tables import ROW_REDUCTIONS, rows_of

Rule: TypeAlias = Callable[[LayerCall], CallPlacement]

LINEAR = ("add", "sub", "neg", "clone", "to", "_to_copy", "detach", "alias", "contiguous", "copy")
"""Ops whose result is a linear combination of one or several operands."""

SCALING = ("mul", "div")
"""Ops that are linear in one operand."""

ELEMENTWISE = (
    *LINEAR, *SCALING, "zero", "fill", "zeros_like", "ones_like", "full_like", "empty_like",
    "where", "masked_fill", "lift_fresh", "threshold_backward", "sigmoid_backward", "tanh_backward",
    "gelu_backward", "silu_backward", "hardtanh_backward", "leaky_relu_backward", "elu_backward",
)  # fmt: skip
"""Pointwise ops, in addition to those that torch marks as pointwise."""


def choose(call: LayerCall) -> CallPlacement:
    """Return the placements of an op's tensors on a rank; full tensors if it has no rule."""
    base = plain_name(call.op.name).rpartition(".")[2].rstrip("_")
    if all(call.placement_of(tensor) == SAME for tensor in call.op.inputs):
        return WHOLE
    rule = RULES.get(base) or VIEWS.get(base)
    if rule is None and is_elementwise(call.op):
        rule = _elementwise
    return rule(call) if rule else WHOLE


def is_elementwise(op: Op) -> bool:
    """Return whether an op, or each position of an op over lists, is pointwise."""
    base = op.base.rstrip("_")
    if base.startswith(("_foreach_", "_fused_")):
        return base.removeprefix("_foreach_").removeprefix("_fused_") not in ROW_REDUCTIONS
    return base in ELEMENTWISE or is_pointwise(op.name)


def _elementwise(call: LayerCall) -> CallPlacement:
    """Pointwise ops: all tensors of a row are split along the same axis."""
    operand_placements: dict[str, LayerPlacement] = {}
    results = {tensor.name for tensor in call.op.outputs}
    result_placements: dict[str, LayerPlacement] = {}
    for row in rows_of(call.op):
        operands = [tensor for tensor in row if tensor.name not in results]
        rank = max((tensor.rank for tensor in row), default=0)
        target = _row_placement(call, operands, rank)
        for tensor in row:
            placement = _tensor_placement(tensor, target, rank)
            (result_placements if tensor.name in results else operand_placements)[tensor.name] = (
                placement
            )
    return CallPlacement(
        operand_placements,
        tuple(result_placements.get(tensor.name, SAME) for tensor in call.op.outputs),
    )


def _row_placement(call: LayerCall, operands: Sequence[Tensor], rank: int) -> LayerPlacement:
    """Return the placement of a row, by broadcast axes: a written tensor's, or the first split."""
    written = {tensor.name for tensor in written_by(call.op)}
    if any(call.placement_of(tensor) == PART for tensor in operands) and _preserves_parts(
        call, operands
    ):
        return PART
    for tensor in operands:
        if tensor.name in written:
            return _broadcast_placement(call, tensor, rank)
    placements = (_broadcast_placement(call, tensor, rank) for tensor in operands)
    return next((placement for placement in placements if placement.kind == "split"), SAME)


def _broadcast_placement(call: LayerCall, tensor: Tensor, rank: int) -> LayerPlacement:
    axis = call.axis(tensor)
    return SAME if axis is None else split_along(axis + rank - tensor.rank)


def _preserves_parts(call: LayerCall, operands: Sequence[Tensor]) -> bool:
    """Return whether an op on a row with parts of sums returns parts of sums."""
    base = call.op.base.rstrip("_").removeprefix("_foreach_")
    parts = [call.placement_of(tensor) == PART for tensor in operands]
    if base in LINEAR:
        numbers = [value for value in call.op.operands[1:] if isinstance(value, (int, float))]
        return all(parts) and (base not in ("add", "sub") or not numbers)
    return base in SCALING and parts[0] and not any(parts[1:])


def _tensor_placement(tensor: Tensor, target: LayerPlacement, rank: int) -> LayerPlacement:
    """Return a tensor's placement in a row that is split along an axis of its broadcast shape."""
    axis = target.axis - rank + tensor.rank
    if target.kind != "split":
        return target if target == PART and tensor.rank == rank and tensor.numel > 1 else SAME
    return split_along(axis) if axis >= 0 and tensor.shape[axis] != 1 else SAME


def _product(call: LayerCall) -> CallPlacement:
    """Matrix products: a product over a split axis returns parts of a sum."""
    *bias, left, right = call.op.inputs
    (product,) = call.op.outputs
    axes, last = (call.axis(left), call.axis(right)), product.rank - 1
    if axes[0] == last or axes[1] == last - 1:
        if bias:
            return WHOLE
        return CallPlacement(
            {left.name: split_along(last), right.name: split_along(last - 1)}, (PART,)
        )
    shared_axis = next((axis for axis in axes if axis is not None), None)
    if shared_axis is None:
        return WHOLE
    placement = split_along(shared_axis)
    operand_placements = {}
    if shared_axis != last:
        operand_placements[left.name] = placement
    if shared_axis != last - 1:
        operand_placements[right.name] = placement
    operand_placements |= {
        tensor.name: _tensor_placement(tensor, placement, product.rank) for tensor in bias
    }
    return CallPlacement(operand_placements, (placement,))


def needs_late_bias(call: LayerCall) -> bool:
    """Return whether a product with a bias sums over a split axis: its bias is added later."""
    op = call.op
    if op.base not in ("addmm", "addmm_tf32") or op.attributes or len(op.operands) != 3:
        return False
    _, left, right = op.inputs
    return call.axis(left) == left.rank - 1 or call.axis(right) == right.rank - 2


def _sum(call: LayerCall) -> CallPlacement:
    """Sums: over a split axis they return parts of a sum."""
    source, (total,) = call.op.inputs[0], call.op.outputs
    axis = call.axis(source)
    if axis is None:
        return WHOLE
    over = call.dims("dim", 1, source.rank) or range(source.rank)
    if axis in over:
        return CallPlacement({source.name: split_along(axis)}, (PART,))
    keeps_rank = total.rank == source.rank
    result_axis = axis if keeps_rank else axis - sum(dim < axis for dim in over)
    return CallPlacement({source.name: split_along(axis)}, (split_along(result_axis),))


def _softmax(call: LayerCall) -> CallPlacement:
    """Softmax and its gradient: rows along an axis are independent."""
    source = call.op.inputs[0]
    axes = (call.axis(tensor) for tensor in call.op.inputs)
    axis = next((axis for axis in axes if axis is not None), None)
    position = 2 if "backward" in call.op.base else 1
    if axis is None or axis in call.dims("dim", position, source.rank):
        return WHOLE
    return CallPlacement({t.name: split_along(axis) for t in call.op.inputs}, (split_along(axis),))


def _attention(call: LayerCall) -> CallPlacement:
    """Fused attention and its gradient: heads are independent."""
    axes = {call.axis(tensor) for tensor in call.op.inputs if tensor.rank == 4} - {None}
    heads = {tensor.shape[1] for tensor in call.op.inputs if tensor.rank == 4}
    if axes != {1} or not all(call.divides(size) or size == 1 for size in heads):
        return WHOLE
    max_heads = max(heads)

    def placement(tensor: Tensor) -> LayerPlacement:
        return split_along(1) if tensor.rank >= 3 and tensor.shape[1] in heads - {1} else SAME

    results = tuple(
        placement(t) if t.rank == 4 or max_heads in t.shape[1:2] else SAME for t in call.op.outputs
    )
    return CallPlacement({tensor.name: placement(tensor) for tensor in call.op.inputs}, results)


def _foreign_collective(call: LayerCall) -> CallPlacement:
    """Collectives over other groups, whose ranks have the same part: sums and means are linear."""
    return CallPlacement({tensor.name: call.placement_of(tensor) for tensor in call.op.inputs})


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("all_reduce", "all_reduce_coalesced", "wait_tensor"), _foreign_collective),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _product),
    "sum": _sum,
    **dict.fromkeys(
        ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
        _softmax,
    ),
    **{
        f"_scaled_dot_product_{kind}{suffix}": _attention
        for kind in (
            "efficient_attention",
            "flash_attention",
            "flash_attention_for_cpu",
            "cudnn_attention",
        )
        for suffix in ("", "_backward")
    },
}
"""Rules by the last part of an op's name."""
