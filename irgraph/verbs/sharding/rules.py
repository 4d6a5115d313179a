"""Placement rules by op: results of operands that are the same, split, or parts of sums.

Every rule returns the placement of the results; ops without a rule are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from irgraph.ir.calls import is_pointwise
from irgraph.ir.dim import Dim
from irgraph.ir.op import Op, Value, tensors_in
from irgraph.ir.schema import bind, schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.verbs.sharding.batch_placement import (
    SAME,
    SPLIT,
    ZERO,
    BatchCall,
    BatchPlacement,
    PartialSumError,
    depends,
)
from irgraph.verbs.sharding.modules import MODULES

MEAN = 1
"""The reduction of losses whose gradients are divided by the batch."""

REDUCTION_POSITIONS = {"binary_cross_entropy": 3, "binary_cross_entropy_with_logits": 4}
"""Position of the reduction among the operands of pointwise losses; the default is 2."""

Rule: TypeAlias = Callable[[BatchCall], BatchPlacement]


def draws_random(op: Op) -> bool:
    """Return whether an op draws random numbers; attention without dropout draws none."""
    schemas = schemas_of(op.name)
    if not any(schema.random for schema in schemas):
        return False
    arguments = {argument.name: value for schema in schemas for argument, value in bind(schema, op)}
    has_rate = any(
        argument.name == "dropout_p" for schema in schemas for argument in schema.arguments
    )
    return not has_rate or arguments.get("dropout_p", 0.0) != 0


def result_placements(call: BatchCall) -> tuple[BatchPlacement, ...]:
    """Return the placement of each result of an op, or one for all its results and writes.

    Raises:
        PartialSumError: it needs full values of a sum.
        RefusedError: it mixes samples of different ranks, or has no rule.
    """
    op = call.op
    rule = RULES.get(op.name) or RULES.get(op.base.rstrip("_").removeprefix("_foreach_"))
    kinds = {placement.kind for placement in call.placements_of()}
    results = [*op.outputs, *(t for t in op.inputs if t.name in op.written)]
    has_batch = any(call.axis(tensor) is not None for tensor in results)
    if draws_random(op):
        raise call.refuse("draws random numbers: ranks would draw others than the whole step")
    is_replicated = kinds <= {"same", "zero"} and not has_batch and not call.counts
    if is_replicated and op.base.rstrip("_") not in ZEROS:
        if any(placement.factor for placement in call.placements_of()):
            raise call.refuse("takes a gradient that was scaled by the number of ranks")
        return (SAME,)
    if op.name.startswith("aten.") and op.base in MODULES and not call.counts:
        return MODULES[op.base](call)
    if rule is None and "part" in kinds and not has_batch and "split" not in kinds:
        raise PartialSumError
    if rule is None and is_pointwise(op.name):
        rule = _pointwise
    if rule is None:
        raise call.refuse("has no rule that keeps samples separate")
    result = rule(call)
    if rule not in SIZE_RULES:
        result = replace(result, factor=result.factor + _counts(call, rule))
    return (result,)


def _counts(call: BatchCall, rule: Rule) -> int:
    """Return the power of the number of ranks due to a division by the size of the batch."""
    if not call.counts:
        return 0
    if rule is not _quotient or [names for names, _ in call.counts[0].terms] != [(call.dim,)]:
        raise call.refuse("computes with the size of the batch, which differs on a rank")
    return 1


def _check_aligned(call: BatchCall, values: Sequence[Value] | None = None) -> None:
    """Refuse operands whose batch axes do not align when they broadcast."""
    op = call.op
    tensors = list(op.inputs if values is None else tensors_in(values))
    results = (*op.outputs, *(t for t in op.inputs if t.name in op.written))
    axes = {
        axis - tensor.rank
        for tensor in (*tensors, *results)
        for axis in [call.axis(tensor)]
        if axis is not None
    }
    if len(axes) > 1:
        raise call.refuse("pairs samples with others")


def _linear(call: BatchCall) -> BatchPlacement:
    """Sums and copies: the common placement of all operands."""
    _check_aligned(call)
    return _combine(call, call.placements_of())


def _combine(call: BatchCall, placements: Sequence[BatchPlacement]) -> BatchPlacement:
    """Return the placement of a sum of operands."""
    distinct = dict.fromkeys(placement for placement in placements if placement.kind != "zero")
    kinds = {placement.kind for placement in distinct}
    if "part" in kinds and len(distinct) > 1:
        raise PartialSumError
    if len({placement.factor for placement in distinct}) > 1:
        raise call.refuse("adds gradients of which one was scaled by the number of ranks")
    if not distinct:
        return ZERO
    return SPLIT if kinds == {"same", "split"} else next(iter(distinct))


def _pointwise(call: BatchCall) -> BatchPlacement:
    """Any pointwise function: no operand may be scaled."""
    _check_aligned(call)
    if any(placement.kind == "part" for placement in call.placements_of()):
        raise PartialSumError
    if any(placement.factor for placement in call.placements_of()):
        raise call.refuse("is not linear in a gradient that was scaled by the number of ranks")
    return SPLIT


def _product(call: BatchCall) -> BatchPlacement:
    """Pointwise products: factors are added."""
    _check_aligned(call)
    placements = call.placements_of()
    parts = [placement for placement in placements if placement.kind == "part"]
    if parts and not (len(parts) == 1 and all(s.kind in ("same", "part") for s in placements)):
        raise PartialSumError
    kind = "part" if parts else "split" if SPLIT.kind in {s.kind for s in placements} else "same"
    return BatchPlacement(kind, sum(placement.factor for placement in placements))


def _quotient(call: BatchCall) -> BatchPlacement:
    """Quotients: linear in the dividend."""
    over = call.placements_of(call.op.operands[1:])
    if any(placement.kind == "part" for placement in over):
        raise PartialSumError
    if any(placement.factor for placement in over):
        raise call.refuse("divides by a gradient that was scaled by the number of ranks")
    return _product(call)


def _gradient(call: BatchCall) -> BatchPlacement:
    """The gradient of a pointwise function: linear in its first operand."""
    _check_aligned(call)
    first, *others = call.placements_of()
    if "part" in {placement.kind for placement in (first, *others)}:
        raise PartialSumError
    if any(placement.factor for placement in others):
        raise call.refuse("takes activations that are gradients")
    return BatchPlacement("split", first.factor)


def _masked_fill(call: BatchCall) -> BatchPlacement:
    """A number at masked elements: linear in the other elements if the number is 0."""
    value = call.option("value", 2)
    zero = isinstance(value, (int, float)) and value == 0
    return _gradient(call) if zero else _pointwise(call)


def _matmul(call: BatchCall) -> BatchPlacement:
    """Matrix products; a product over the batch is a part of a sum."""
    *bias, left, right = call.op.inputs
    axes = call.axis(left), call.axis(right)
    inner = left.rank - 1, right.rank - 2
    factor = call.placement_of(left).factor + call.placement_of(right).factor
    if "part" in {placement.kind for placement in call.placements_of()}:
        raise PartialSumError
    if axes == inner:
        if bias:
            raise (
                PartialSumError
                if call.placement_of(bias[0]).kind == "part"
                else call.refuse("adds a bias to a sum over samples")
            )
        return BatchPlacement("part", factor)
    if inner[0] == axes[0] or inner[1] == axes[1] or (None not in axes and axes[0] != axes[1]):
        raise call.refuse("multiplies samples with other samples")
    if bias and (factor or call.placement_of(bias[0]).factor):
        raise call.refuse("adds a bias to a scaled gradient")
    return BatchPlacement("split", factor)


def _sum(call: BatchCall) -> BatchPlacement:
    """Sums and means over axes; over the batch, parts of a sum and parts of a mean."""
    source = call.op.inputs[0]
    axis, placement = call.axis(source), call.placement_of(source)
    dims = call.option("dim", 1)
    axes = [dims] if isinstance(dims, int) else dims
    over = range(source.rank) if not axes else [d % source.rank for d in axes]  # type: ignore[union-attr, operator]
    if axis is None or axis not in over:
        return placement
    mean = call.op.base == "mean"
    return BatchPlacement("part", placement.factor + mean)


def _loss(call: BatchCall) -> BatchPlacement:
    """Pointwise losses: a mean over a rank's samples is its part of a mean."""
    placement = _pointwise(call)
    reduction = call.option("reduction", REDUCTION_POSITIONS.get(call.op.base, 2), MEAN)
    return BatchPlacement("part", 1 if reduction == MEAN else 0) if reduction else placement


def _loss_gradient(call: BatchCall) -> BatchPlacement:
    """Gradients of pointwise losses: divided by a rank's samples instead of all samples."""
    gradient = call.placement_of(call.op.inputs[0])
    if gradient.kind == "part":
        raise PartialSumError
    if any(placement.factor for placement in call.placements_of()[1:]):
        raise call.refuse("takes activations that are gradients")
    reduction = call.option("reduction", {"binary_cross_entropy_backward": 4}.get(call.op.base, 3))
    return BatchPlacement("split", gradient.factor + (1 if reduction in (MEAN, None) else 0))


def _reshape(call: BatchCall) -> BatchPlacement:
    """Views in another shape: the order of samples must be preserved."""
    source, view = call.op.inputs[0], call.op.outputs[0]
    source_axis, view_axis = call.axis(source), call.axis(view)
    if source_axis is not None and (
        view_axis is None
        or math.prod(source.shape[:source_axis]) != math.prod(view.shape[:view_axis])
    ):
        raise call.refuse("mixes samples with what lies before them")
    return call.placement_of(source)


def _move(call: BatchCall) -> BatchPlacement:
    """Views and copies that preserve the batch."""
    source, view = call.op.inputs[0], call.op.outputs[0]
    source_axis, view_axis = call.axis(source), call.axis(view)
    if source_axis is not None and (
        view_axis is None or str(source.shape[source_axis]) != str(view.shape[view_axis])
    ):
        raise call.refuse("takes some samples and leaves others")
    return call.placement_of(source)


def _copy(call: BatchCall) -> BatchPlacement:
    """Copies into a tensor: the placement of the source."""
    _check_aligned(call)
    return call.placement_of(call.op.inputs[1])


def _concatenate(call: BatchCall) -> BatchPlacement:
    """Concatenation along another axis than the batch."""
    first, result = call.op.inputs[0], call.op.outputs[0]
    dim = call.option("dim", 1, 0)
    result_axis = dim % result.rank if isinstance(dim, int) else 0
    if call.axis(result) == result_axis or call.axis(first) == result_axis:
        raise call.refuse("joins samples of one rank, where the whole step joins those of all")
    return _combine(call, call.placements_of())


def _index(call: BatchCall) -> BatchPlacement:
    """Elements at given indices, equal for every sample."""
    source = call.op.inputs[0]
    axis, indices = call.axis(source), call.option("indices", 1)
    index_values = indices if isinstance(indices, tuple) else (indices,)
    is_same = all(
        s.kind == "same" for s in call.placements_of([v for v in index_values if v is not None])
    )
    if not is_same or (
        axis is not None and axis < len(index_values) and index_values[axis] is not None
    ):
        raise call.refuse("picks samples by their position in the batch")
    placements = [call.placement_of(source), *call.placements_of(call.op.operands[2:])]
    combined = _combine(call, placements)
    return replace(combined, kind="split") if axis is not None else combined


def _zeros(call: BatchCall) -> BatchPlacement:
    """Tensors of zeros."""
    return ZERO


def _fill(call: BatchCall) -> BatchPlacement:
    """Tensors filled with one number, which is the same on all ranks."""
    attributes = call.op.attributes
    last = call.op.operands[-1] if call.op.operands else 0
    value = attributes.get("fill_value", attributes.get("value", last))
    if call.op.base == "fill_" and isinstance(value, Tensor):
        raise call.refuse("is filled with what another op computes")
    if isinstance(value, Dim) and depends(value, call.dim):
        raise call.refuse("computes with the size of the batch, which differs on a rank")
    return SAME if call.axis((*call.op.outputs, *call.op.inputs)[0]) is None else SPLIT


def _empty(call: BatchCall) -> BatchPlacement:
    """Ops that read no values."""
    return SAME


SIZE_RULES = (_move, _reshape, _zeros, _fill, _empty)
"""Rules of ops whose numbers are sizes of their results, or positions in their operands."""

ZEROS = ("zero", "zeros", "zeros_like", "new_zeros")

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("add", "sub", "neg", "rsub"), _linear),
    **dict.fromkeys(("mul",), _product),
    **dict.fromkeys(("div",), _quotient),
    "masked_fill": _masked_fill,
    **dict.fromkeys(
        ("to", "_to_copy", "clone", "contiguous", "detach", "alias", "expand", "t",
         "transpose", "permute", "unsqueeze", "squeeze", "narrow", "slice", "select", "lift_fresh",
         "lift_fresh_copy", "broadcast_tensors", "broadcast_to", "wait_tensor"), _move,
    ),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten", "_reshape_alias"),
                    _reshape),
    "copy": _copy,
    **dict.fromkeys(("cat", "stack"), _concatenate),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "matmul", "linear"), _matmul),
    **dict.fromkeys(("sum", "mean"), _sum),
    **dict.fromkeys(("mse_loss", "binary_cross_entropy",
                     "binary_cross_entropy_with_logits"), _loss),
    **dict.fromkeys(("mse_loss_backward", "binary_cross_entropy_backward"), _loss_gradient),
    **dict.fromkeys(
        ("threshold_backward", "sigmoid_backward", "tanh_backward", "gelu_backward",
         "silu_backward", "hardtanh_backward", "leaky_relu_backward", "elu_backward"), _gradient,
    ),
    **dict.fromkeys(("index", "_index_put_impl", "index_put"), _index),
    **dict.fromkeys(ZEROS, _zeros),
    **dict.fromkeys(("ones_like", "full_like", "full", "ones", "new_full", "new_ones", "fill"),
                    _fill),
    **dict.fromkeys(("empty", "empty_like"), _empty),
}  # fmt: skip
"""Rules by the last part of an op's name, without marks of list and in-place ops."""
