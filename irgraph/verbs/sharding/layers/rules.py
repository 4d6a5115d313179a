"""How ops run on a rank that has parts of some tensors: which parts they take, what they make.

An op without a rule takes whole tensors. That is legal for every op: what is split is gathered
before it, what are parts of a sum are added up.
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
    Choice,
    LayerCall,
    LayerPlacement,
    split,
)
from irgraph.verbs.sharding.layers.views import VIEWS
from irgraph.verbs.sharding.tables import OVER_ROWS, rows_of

Rule: TypeAlias = Callable[[LayerCall], Choice]

LINEAR = ("add", "sub", "neg", "clone", "to", "_to_copy", "detach", "alias", "contiguous", "copy")
"""Ops of one or several operands that are sums of multiples of them."""

SCALING = ("mul", "div")
"""Ops that are linear in one operand."""

ELEMENTS = (
    *LINEAR, *SCALING, "zero", "fill", "zeros_like", "ones_like", "full_like", "empty_like",
    "where", "masked_fill", "lift_fresh", "threshold_backward", "sigmoid_backward", "tanh_backward",
    "gelu_backward", "silu_backward", "hardtanh_backward", "leaky_relu_backward", "elu_backward",
)  # fmt: skip
"""Ops by elements beside those that torch marks."""


def choose(call: LayerCall) -> Choice:
    """Return how an op runs on a rank; all of its operands whole where no rule knows more."""
    base = plain_name(call.op.name).rpartition(".")[2].rstrip("_")
    if all(call.place(tensor) == SAME for tensor in call.op.inputs):
        return WHOLE
    rule = RULES.get(base) or VIEWS.get(base)
    if rule is None and by_elements(call.op):
        rule = _elements
    return rule(call) if rule else WHOLE


def by_elements(op: Op) -> bool:
    """Return whether an op, or each place of one over lists, goes element by element."""
    base = op.base.rstrip("_")
    if base.startswith(("_foreach_", "_fused_")):
        return base.removeprefix("_foreach_").removeprefix("_fused_") not in OVER_ROWS
    return base in ELEMENTS or is_pointwise(op.name)


def _elements(call: LayerCall) -> Choice:
    """Each row of tensors that an op takes together is split alike."""
    wants: dict[str, LayerPlacement] = {}
    made = {tensor.name for tensor in call.op.outputs}
    makes: dict[str, LayerPlacement] = {}
    for row in rows_of(call.op):
        taken = [tensor for tensor in row if tensor.name not in made]
        rank = max((tensor.rank for tensor in row), default=0)
        target = _target(call, taken, rank)
        for tensor in row:
            place = _aligned(tensor, target, rank)
            (makes if tensor.name in made else wants)[tensor.name] = place
    return Choice(wants, tuple(makes.get(tensor.name, SAME) for tensor in call.op.outputs))


def _target(call: LayerCall, taken: Sequence[Tensor], rank: int) -> LayerPlacement:
    """Return how all tensors of a row are split, by the broadcast axes; what is written decides."""
    written = {tensor.name for tensor in written_by(call.op)}
    if any(call.place(tensor) == PART for tensor in taken) and _linear(call, taken):
        return PART
    for tensor in taken:
        if tensor.name in written:
            return _spread(call, tensor, rank)
    found = (_spread(call, tensor, rank) for tensor in taken)
    return next((place for place in found if place.kind == "split"), SAME)


def _spread(call: LayerCall, tensor: Tensor, rank: int) -> LayerPlacement:
    axis = call.axis(tensor)
    return SAME if axis is None else split(axis + rank - tensor.rank)


def _linear(call: LayerCall, taken: Sequence[Tensor]) -> bool:
    """Return whether a row of parts of sums, and what multiplies them, makes such parts."""
    base = call.op.base.rstrip("_").removeprefix("_foreach_")
    parts = [call.place(tensor) == PART for tensor in taken]
    if base in LINEAR:
        numbers = [value for value in call.op.operands[1:] if isinstance(value, (int, float))]
        return all(parts) and (base not in ("add", "sub") or not numbers)
    return base in SCALING and parts[0] and not any(parts[1:])


def _aligned(tensor: Tensor, target: LayerPlacement, rank: int) -> LayerPlacement:
    """Return a tensor's own place where the row is split along an axis of its broadcast shape."""
    axis = target.axis - rank + tensor.rank
    if target.kind != "split":
        return target if target == PART and tensor.rank == rank and tensor.numel > 1 else SAME
    return split(axis) if axis >= 0 and tensor.shape[axis] != 1 else SAME


def _product(call: LayerCall) -> Choice:
    """Matrix products: a product over what is split makes parts of a sum."""
    *bias, left, right = call.op.inputs
    (made,) = call.op.outputs
    axes, last = (call.axis(left), call.axis(right)), made.rank - 1
    if axes[0] == last or axes[1] == last - 1:
        if bias:
            return WHOLE
        return Choice({left.name: split(last), right.name: split(last - 1)}, (PART,))
    found = next((axis for axis in axes if axis is not None), None)
    if found is None:
        return WHOLE
    place = split(found)
    wants = {}
    if found != last:
        wants[left.name] = place
    if found != last - 1:
        wants[right.name] = place
    wants |= {tensor.name: _aligned(tensor, place, made.rank) for tensor in bias}
    return Choice(wants, (place,))


def over_parts(call: LayerCall) -> bool:
    """Return whether a product with a bias goes over what is split: its bias is added later."""
    op = call.op
    if op.base not in ("addmm", "addmm_tf32") or op.attributes or len(op.operands) != 3:
        return False
    _, left, right = op.inputs
    return call.axis(left) == left.rank - 1 or call.axis(right) == right.rank - 2


def _sum(call: LayerCall) -> Choice:
    """Sums over what is split are parts of a sum."""
    source, (made,) = call.op.inputs[0], call.op.outputs
    axis = call.axis(source)
    if axis is None:
        return WHOLE
    over = call.dims("dim", 1, source.rank) or range(source.rank)
    if axis in over:
        return Choice({source.name: split(axis)}, (PART,))
    kept = made.rank == source.rank
    moved = axis if kept else axis - sum(dim < axis for dim in over)
    return Choice({source.name: split(axis)}, (split(moved),))


def _along(call: LayerCall) -> Choice:
    """Softmax and its gradient: rows along an axis are treated apart."""
    source = call.op.inputs[0]
    found = (call.axis(tensor) for tensor in call.op.inputs)
    axis = next((axis for axis in found if axis is not None), None)
    place = 2 if "backward" in call.op.base else 1
    if axis is None or axis in call.dims("dim", place, source.rank):
        return WHOLE
    return Choice({t.name: split(axis) for t in call.op.inputs}, (split(axis),))


def _attention(call: LayerCall) -> Choice:
    """Fused attention and its gradient: heads are treated apart."""
    axes = {call.axis(tensor) for tensor in call.op.inputs if tensor.rank == 4} - {None}
    heads = {tensor.shape[1] for tensor in call.op.inputs if tensor.rank == 4}
    if axes != {1} or not all(call.divides(size) or size == 1 for size in heads):
        return WHOLE
    most = max(heads)

    def place(tensor: Tensor) -> LayerPlacement:
        return split(1) if tensor.rank >= 3 and tensor.shape[1] in heads - {1} else SAME

    makes = tuple(
        place(t) if t.rank == 4 or most in t.shape[1:2] else SAME for t in call.op.outputs
    )
    return Choice({tensor.name: place(tensor) for tensor in call.op.inputs}, makes)


def _apart(call: LayerCall) -> Choice:
    """Collectives of other ranks, each of which has the same part: sums and means are linear."""
    return Choice({tensor.name: call.place(tensor) for tensor in call.op.inputs})


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("all_reduce", "all_reduce_coalesced", "wait_tensor"), _apart),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _product),
    "sum": _sum,
    **dict.fromkeys(
        ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"), _along
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
"""By the last part of an op's name."""
