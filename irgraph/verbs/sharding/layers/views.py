"""Placement rules of views and copies: the axis along which results of a split tensor are split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from irgraph.axes.algebra import Algebra
from irgraph.ir.op import Value
from irgraph.ir.tensor import Tensor
from irgraph.verbs.sharding.layers.placement import (
    PART,
    WHOLE,
    CallPlacement,
    LayerCall,
    LayerPlacement,
    split_along,
)

Rule: TypeAlias = Callable[[LayerCall], CallPlacement]


def _same_layout(
    call: LayerCall, axis: int | None, arguments: Mapping[str, Value] | None = None
) -> CallPlacement:
    """Return the placement that uses the one operand unchanged: its results are split along axis.

    With axis ``None``, a split operand is gathered; a part of a sum gives parts of a sum.
    """
    source = call.op.inputs[0]
    placement = call.placement_of(source)
    if placement == PART:
        return CallPlacement({source.name: PART}, tuple(PART for _ in call.op.outputs))
    if axis is None:
        return WHOLE
    return CallPlacement(
        {source.name: placement}, tuple(split_along(axis) for _ in call.op.outputs), arguments or {}
    )


def _reshape(call: LayerCall) -> CallPlacement:
    """Another shape: an axis stays split in blocks if the number of ranks divides its new size."""
    source, (view,) = call.op.inputs[0], call.op.outputs
    axis = call.axis(source)
    if axis is None:
        return _same_layout(call, None)
    before = _product(call.sizes, source.shape[:axis])
    for position, size in enumerate(view.shape):
        starts = str(_product(call.sizes, view.shape[:position])) == str(before)
        if starts and size != 1 and call.divides(size):
            return _same_layout(call, position, _local_shape_argument(call, position, size))
    return WHOLE


def _product(sizes: Algebra, shape: Sequence[int]) -> int:
    return sizes.times(*shape)


def _local_shape_argument(call: LayerCall, axis: int, size: int) -> dict[str, Value]:
    """Return the argument with the shape, with a rank's size along an axis."""
    for name in ("size", "shape", "sizes"):
        value = call.op.attributes.get(name)
        if isinstance(value, tuple) and axis < len(value) and value[axis] == size:
            return {name: (*value[:axis], size // call.ranks, *value[axis + 1 :])}
    return {}


def _transpose(call: LayerCall) -> CallPlacement:
    """Exchange of two axes."""
    source = call.op.inputs[0]
    axis = call.axis(source)
    first, second = 0, source.rank - 1
    if call.op.base != "t":
        (first,) = call.dims("dim0", 1, source.rank)
        (second,) = call.dims("dim1", 2, source.rank)
    if axis is None or source.rank < 2:
        return _same_layout(call, axis)
    return _same_layout(call, {first: second, second: first}.get(axis, axis))


def _permute(call: LayerCall) -> CallPlacement:
    """Axes in another order."""
    source = call.op.inputs[0]
    order, axis = list(call.dims("dims", 1, source.rank)), call.axis(source)
    return _same_layout(call, None if axis is None else order.index(axis))


def _expand(call: LayerCall) -> CallPlacement:
    """Repetition of axes of one element; other axes are unchanged, counted from the last."""
    source, (view,) = call.op.inputs[0], call.op.outputs
    axis = call.axis(source)
    if axis is None:
        return _same_layout(call, None)
    result_axis = axis + view.rank - source.rank
    return _same_layout(
        call, result_axis, _local_shape_argument(call, result_axis, view.shape[result_axis])
    )


def _unsqueeze(call: LayerCall) -> CallPlacement:
    """A new axis of one element."""
    source = call.op.inputs[0]
    axis, (new,) = call.axis(source), call.dims("dim", 1, source.rank + 1)
    return _same_layout(call, None if axis is None else axis + (new <= axis))


def _squeeze(call: LayerCall) -> CallPlacement:
    """Removal of axes of one element."""
    source = call.op.inputs[0]
    axis = call.axis(source)
    if axis is None:
        return _same_layout(call, None)
    removed = call.dims("dim", 1, source.rank) or range(source.rank)
    before = sum(source.shape[dim] == 1 for dim in removed if dim < axis)
    return _same_layout(call, axis - before)


def _slice(call: LayerCall) -> CallPlacement:
    """Positions along an axis that is not split."""
    source = call.op.inputs[0]
    axis, (dim,) = call.axis(source), call.dims("dim", 1, source.rank) or (0,)
    if axis is None or axis == dim:
        return WHOLE if call.placement_of(source) != PART else _same_layout(call, None)
    loses_axis = call.op.outputs and call.op.outputs[0].rank < source.rank
    return _same_layout(call, axis - bool(loses_axis and dim < axis))


def _pad(call: LayerCall) -> CallPlacement:
    """More positions at the ends of the last axes."""
    source, pad = call.op.inputs[0], call.option("pad", 1)
    axis, count = call.axis(source), len(pad) // 2 if isinstance(pad, tuple) else source.rank
    return _same_layout(call, axis if axis is not None and axis < source.rank - count else None)


def _slice_backward(call: LayerCall) -> CallPlacement:
    """The gradient of positions along an axis: zeros at all other positions."""
    axis, (gradient,) = call.axis(call.op.inputs[0]), call.op.outputs
    if (
        axis is None
        or axis in call.dims("dim", 2, gradient.rank)
        or call.op.base != "slice_backward"
    ):
        return WHOLE
    sizes = call.option("input_sizes", 1)
    if not isinstance(sizes, tuple) or "input_sizes" not in call.op.attributes:
        return WHOLE
    local_sizes = (*sizes[:axis], gradient.shape[axis] // call.ranks, *sizes[axis + 1 :])
    return _same_layout(call, axis, {"input_sizes": local_sizes})


def _concatenate(call: LayerCall) -> CallPlacement:
    """Concatenation along an axis that is not split."""
    tensors: Sequence[Tensor] = call.op.inputs
    axes = {call.axis(tensor) for tensor in tensors} - {None}
    dims = call.dims("dim", 1, call.op.outputs[0].rank) or (0,)
    if len(axes) != 1 or axes & set(dims) or call.op.base != "cat":
        return WHOLE
    placement: LayerPlacement = split_along(int(next(iter(axes)) or 0))
    return CallPlacement({tensor.name: placement for tensor in tensors}, (placement,))


VIEWS: Mapping[str, Rule] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten", "_reshape_alias"),
                    _reshape),
    **dict.fromkeys(("t", "transpose", "swapaxes"), _transpose),
    "permute": _permute,
    **dict.fromkeys(("expand", "broadcast_to"), _expand),
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    **dict.fromkeys(("slice", "select", "narrow", "unbind", "split", "chunk", "split_with_sizes"),
                    _slice),
    "cat": _concatenate,
    "constant_pad_nd": _pad,
    "slice_backward": _slice_backward,
}  # fmt: skip
"""Rules by the last part of an op's name."""
