"""What an op makes of tensors that are the same on all ranks, split, or parts of sums, by op.

Every rule says when a result is one of these; what no rule knows is refused.
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
"""The reduction of losses over which gradients are divided by the batch."""

LOSSES = {"binary_cross_entropy": 3, "binary_cross_entropy_with_logits": 4}
"""Where losses by element take their reduction, if not third."""

Rule: TypeAlias = Callable[[BatchCall], BatchPlacement]


def draws(op: Op) -> bool:
    """Return whether an op draws random numbers; attention without dropout draws none."""
    schemas = schemas_of(op.name)
    if not any(schema.random for schema in schemas):
        return False
    named = {argument.name: value for schema in schemas for argument, value in bind(schema, op)}
    rates = any(argument.name == "dropout_p" for schema in schemas for argument in schema.arguments)
    return not rates or named.get("dropout_p", 0.0) != 0


def spreads_of(call: BatchCall) -> tuple[BatchPlacement, ...]:
    """Return what each of an op's results is, or one for all of them and for what it writes.

    Raises:
        PartsError: it needs whole values of a sum.
        RefusedError: it mixes samples of different ranks, or no rule knows it.
    """
    op = call.op
    rule = RULES.get(op.name) or RULES.get(op.base.rstrip("_").removeprefix("_foreach_"))
    kinds = {spread.kind for spread in call.spreads()}
    made = [*op.outputs, *(t for t in op.inputs if t.name in op.written)]
    grown = any(call.axis(tensor) is not None for tensor in made)
    if draws(op):
        raise call.refuse("draws random numbers: ranks would draw others than the whole step")
    alike = kinds <= {"same", "zero"} and not grown and not call.counts
    if alike and op.base.rstrip("_") not in ZEROS:
        if any(spread.factor for spread in call.spreads()):
            raise call.refuse("takes a gradient that was scaled by the number of ranks")
        return (SAME,)
    if op.name.startswith("aten.") and op.base in MODULES and not call.counts:
        return MODULES[op.base](call)
    if rule is None and "part" in kinds and not grown and "split" not in kinds:
        raise PartialSumError
    if rule is None and is_pointwise(op.name):
        rule = _pointwise
    if rule is None:
        raise call.refuse("has no rule that keeps samples separate")
    found = rule(call)
    if rule not in SIZED:
        found = replace(found, factor=found.factor + _counts(call, rule))
    return (found,)


def _counts(call: BatchCall, rule: Rule) -> int:
    """Return the power of the number of ranks that division by the size of the batch brings."""
    if not call.counts:
        return 0
    if rule is not _quotient or [names for names, _ in call.counts[0].terms] != [(call.dim,)]:
        raise call.refuse("computes with the size of the batch, which differs on a rank")
    return 1


def _aligned(call: BatchCall, values: Sequence[Value] | None = None) -> None:
    """Refuse operands whose axes of the batch do not meet when they broadcast."""
    op = call.op
    tensors = list(op.inputs if values is None else tensors_in(values))
    made = (*op.outputs, *(t for t in op.inputs if t.name in op.written))
    axes = {
        axis - tensor.rank
        for tensor in (*tensors, *made)
        for axis in [call.axis(tensor)]
        if axis is not None
    }
    if len(axes) > 1:
        raise call.refuse("pairs samples with others")


def _linear(call: BatchCall) -> BatchPlacement:
    """Sums and copies: what all operands are."""
    _aligned(call)
    return _together(call, call.spreads())


def _together(call: BatchCall, spreads: Sequence[BatchPlacement]) -> BatchPlacement:
    """Return what a sum of operands is."""
    found = dict.fromkeys(spread for spread in spreads if spread.kind != "zero")
    kinds = {spread.kind for spread in found}
    if "part" in kinds and len(found) > 1:
        raise PartialSumError
    if len({spread.factor for spread in found}) > 1:
        raise call.refuse("adds gradients of which one was scaled by the number of ranks")
    if not found:
        return ZERO
    return SPLIT if kinds == {"same", "split"} else next(iter(found))


def _pointwise(call: BatchCall) -> BatchPlacement:
    """Any function of elements: nothing may be scaled."""
    _aligned(call)
    if any(spread.kind == "part" for spread in call.spreads()):
        raise PartialSumError
    if any(spread.factor for spread in call.spreads()):
        raise call.refuse("is not linear in a gradient that was scaled by the number of ranks")
    return SPLIT


def _product(call: BatchCall) -> BatchPlacement:
    """Elements times elements: factors add up."""
    _aligned(call)
    spreads = call.spreads()
    parts = [spread for spread in spreads if spread.kind == "part"]
    if parts and not (len(parts) == 1 and all(s.kind in ("same", "part") for s in spreads)):
        raise PartialSumError
    kind = "part" if parts else "split" if SPLIT.kind in {s.kind for s in spreads} else "same"
    return BatchPlacement(kind, sum(spread.factor for spread in spreads))


def _quotient(call: BatchCall) -> BatchPlacement:
    """Linear in what is divided."""
    over = call.spreads(call.op.operands[1:])
    if any(spread.kind == "part" for spread in over):
        raise PartialSumError
    if any(spread.factor for spread in over):
        raise call.refuse("divides by a gradient that was scaled by the number of ranks")
    return _product(call)


def _gradient(call: BatchCall) -> BatchPlacement:
    """The gradient of a function of elements: linear in its first operand."""
    _aligned(call)
    first, *others = call.spreads()
    if "part" in {spread.kind for spread in (first, *others)}:
        raise PartialSumError
    if any(spread.factor for spread in others):
        raise call.refuse("takes activations that are gradients")
    return BatchPlacement("split", first.factor)


def _masked(call: BatchCall) -> BatchPlacement:
    """A number where a mask says so: linear in the rest where it is 0."""
    value = call.option("value", 2)
    zero = isinstance(value, (int, float)) and value == 0
    return _gradient(call) if zero else _pointwise(call)


def _matmul(call: BatchCall) -> BatchPlacement:
    """Matrix products; a product over the batch is a part of a sum."""
    *bias, left, right = call.op.inputs
    axes = call.axis(left), call.axis(right)
    inner = left.rank - 1, right.rank - 2
    factor = call.spread(left).factor + call.spread(right).factor
    if "part" in {spread.kind for spread in call.spreads()}:
        raise PartialSumError
    if axes == inner:
        if bias:
            raise (
                PartialSumError
                if call.spread(bias[0]).kind == "part"
                else call.refuse("adds a bias to a sum over samples")
            )
        return BatchPlacement("part", factor)
    if inner[0] == axes[0] or inner[1] == axes[1] or (None not in axes and axes[0] != axes[1]):
        raise call.refuse("multiplies samples with other samples")
    if bias and (factor or call.spread(bias[0]).factor):
        raise call.refuse("adds a bias to a scaled gradient")
    return BatchPlacement("split", factor)


def _sum(call: BatchCall) -> BatchPlacement:
    """Sums over axes; over the batch they are parts of a sum, means parts of a mean."""
    source = call.op.inputs[0]
    axis, known = call.axis(source), call.spread(source)
    dims = call.option("dim", 1)
    axes = [dims] if isinstance(dims, int) else dims
    over = range(source.rank) if not axes else [d % source.rank for d in axes]  # type: ignore[union-attr, operator]
    if axis is None or axis not in over:
        return known
    mean = call.op.base == "mean"
    return BatchPlacement("part", known.factor + mean)


def _loss(call: BatchCall) -> BatchPlacement:
    """Losses by element: a mean over a rank's samples is its part of a mean."""
    spread = _pointwise(call)
    reduction = call.option("reduction", LOSSES.get(call.op.base, 2), MEAN)
    return BatchPlacement("part", 1 if reduction == MEAN else 0) if reduction else spread


def _loss_gradient(call: BatchCall) -> BatchPlacement:
    """Their gradients: divided by a rank's samples, where the whole step divides by all."""
    given = call.spread(call.op.inputs[0])
    if given.kind == "part":
        raise PartialSumError
    if any(spread.factor for spread in call.spreads()[1:]):
        raise call.refuse("takes activations that are gradients")
    reduction = call.option("reduction", {"binary_cross_entropy_backward": 4}.get(call.op.base, 3))
    return BatchPlacement("split", given.factor + (1 if reduction in (MEAN, None) else 0))


def _reshaped(call: BatchCall) -> BatchPlacement:
    """Views in another shape: the samples must stay in order."""
    source, made = call.op.inputs[0], call.op.outputs[0]
    before, after = call.axis(source), call.axis(made)
    if before is not None and (
        after is None or math.prod(source.shape[:before]) != math.prod(made.shape[:after])
    ):
        raise call.refuse("mixes samples with what lies before them")
    return call.spread(source)


def _moved(call: BatchCall) -> BatchPlacement:
    """Views and copies that leave the batch whole."""
    source, made = call.op.inputs[0], call.op.outputs[0]
    before, after = call.axis(source), call.axis(made)
    if before is not None and (
        after is None or str(source.shape[before]) != str(made.shape[after])
    ):
        raise call.refuse("takes some samples and leaves others")
    return call.spread(source)


def _copied(call: BatchCall) -> BatchPlacement:
    """What is copied over."""
    _aligned(call)
    return call.spread(call.op.inputs[1])


def _joined(call: BatchCall) -> BatchPlacement:
    """Concatenation along another axis than the batch."""
    first, made = call.op.inputs[0], call.op.outputs[0]
    dim = call.option("dim", 1, 0)
    place = dim % made.rank if isinstance(dim, int) else 0
    if call.axis(made) == place or call.axis(first) == place:
        raise call.refuse("joins samples of one rank, where the whole step joins those of all")
    return _together(call, call.spreads())


def _picked(call: BatchCall) -> BatchPlacement:
    """Elements at given places, of every sample the same."""
    source = call.op.inputs[0]
    axis, indices = call.axis(source), call.option("indices", 1)
    at = indices if isinstance(indices, tuple) else (indices,)
    sound = all(s.kind == "same" for s in call.spreads([v for v in at if v is not None]))
    if not sound or (axis is not None and axis < len(at) and at[axis] is not None):
        raise call.refuse("picks samples by their position in the batch")
    spreads = [call.spread(source), *call.spreads(call.op.operands[2:])]
    found = _together(call, spreads)
    return replace(found, kind="split") if axis is not None else found


def _made(call: BatchCall) -> BatchPlacement:
    """What is filled with zeros."""
    return ZERO


def _filled(call: BatchCall) -> BatchPlacement:
    """What is filled with one number: its part is the same number."""
    given = call.op.attributes
    last = call.op.operands[-1] if call.op.operands else 0
    value = given.get("fill_value", given.get("value", last))
    if call.op.base == "fill_" and isinstance(value, Tensor):
        raise call.refuse("is filled with what another op computes")
    if isinstance(value, Dim) and depends(value, call.dim):
        raise call.refuse("computes with the size of the batch, which differs on a rank")
    return SAME if call.axis((*call.op.outputs, *call.op.inputs)[0]) is None else SPLIT


def _nothing(call: BatchCall) -> BatchPlacement:
    """Ops that read no values."""
    return SAME


SIZED = (_moved, _reshaped, _made, _filled, _nothing)
"""Rules of ops whose numbers are sizes of what they make, or places in what they take."""

ZEROS = ("zero", "zeros", "zeros_like", "new_zeros")

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("add", "sub", "neg", "rsub"), _linear),
    **dict.fromkeys(("mul",), _product),
    **dict.fromkeys(("div",), _quotient),
    "masked_fill": _masked,
    **dict.fromkeys(
        ("to", "_to_copy", "clone", "contiguous", "detach", "alias", "expand", "t",
         "transpose", "permute", "unsqueeze", "squeeze", "narrow", "slice", "select", "lift_fresh",
         "lift_fresh_copy", "broadcast_tensors", "broadcast_to", "wait_tensor"), _moved,
    ),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten", "_reshape_alias"),
                    _reshaped),
    "copy": _copied,
    **dict.fromkeys(("cat", "stack"), _joined),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "matmul", "linear"), _matmul),
    **dict.fromkeys(("sum", "mean"), _sum),
    **dict.fromkeys(("mse_loss", "binary_cross_entropy",
                     "binary_cross_entropy_with_logits"), _loss),
    **dict.fromkeys(("mse_loss_backward", "binary_cross_entropy_backward"), _loss_gradient),
    **dict.fromkeys(
        ("threshold_backward", "sigmoid_backward", "tanh_backward", "gelu_backward",
         "silu_backward", "hardtanh_backward", "leaky_relu_backward", "elu_backward"), _gradient,
    ),
    **dict.fromkeys(("index", "_index_put_impl", "index_put"), _picked),
    **dict.fromkeys(ZEROS, _made),
    **dict.fromkeys(("ones_like", "full_like", "full", "ones", "new_full", "new_ones", "fill"),
                    _filled),
    **dict.fromkeys(("empty", "empty_like"), _nothing),
}  # fmt: skip
"""By the last part of an op's name, without marks of lists and places."""
