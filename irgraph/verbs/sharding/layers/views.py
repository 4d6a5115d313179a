"""Views and copies in another form: along which axis what they make of a split tensor is split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from irgraph.axes.algebra import Algebra
from irgraph.ir.op import Value
from irgraph.ir.tensor import Tensor
from irgraph.verbs.sharding.layers.placement import (
    PART,
    WHOLE,
    Choice,
    LayerCall,
    LayerPlacement,
    split,
)

Rule: TypeAlias = Callable[[LayerCall], Choice]


def _kept(call: LayerCall, axis: int | None, given: Mapping[str, Value] | None = None) -> Choice:
    """Return the choice that leaves the one operand as it is: its results are split so, too."""
    source = call.op.inputs[0]
    place = call.place(source)
    if place == PART:
        return Choice({source.name: PART}, tuple(PART for _ in call.op.outputs))
    if axis is None:
        return WHOLE
    return Choice({source.name: place}, tuple(split(axis) for _ in call.op.outputs), given or {})


def _reshaped(call: LayerCall) -> Choice:
    """Another shape: an axis is split in blocks before and after, where the ranks divide it."""
    source, (made,) = call.op.inputs[0], call.op.outputs
    axis = call.axis(source)
    if axis is None:
        return _kept(call, None)
    before = _product(call.sizes, source.shape[:axis])
    for place, size in enumerate(made.shape):
        starts = str(_product(call.sizes, made.shape[:place])) == str(before)
        if starts and size != 1 and call.divides(size):
            return _kept(call, place, _smaller(call, place, size))
    return WHOLE


def _product(sizes: Algebra, shape: Sequence[int]) -> int:
    return sizes.times(*shape)


def _smaller(call: LayerCall, axis: int, size: int) -> dict[str, Value]:
    """Return the argument that names the shape, with a rank's size along an axis."""
    for name in ("size", "shape", "sizes"):
        value = call.op.attributes.get(name)
        if isinstance(value, tuple) and axis < len(value) and value[axis] == size:
            return {name: (*value[:axis], size // call.ranks, *value[axis + 1 :])}
    return {}


def _turned(call: LayerCall) -> Choice:
    """Two axes change places."""
    source = call.op.inputs[0]
    axis = call.axis(source)
    one, other = 0, source.rank - 1
    if call.op.base != "t":
        (one,) = call.dims("dim0", 1, source.rank)
        (other,) = call.dims("dim1", 2, source.rank)
    if axis is None or source.rank < 2:
        return _kept(call, axis)
    return _kept(call, {one: other, other: one}.get(axis, axis))


def _permuted(call: LayerCall) -> Choice:
    """Axes in another order."""
    source = call.op.inputs[0]
    order, axis = list(call.dims("dims", 1, source.rank)), call.axis(source)
    return _kept(call, None if axis is None else order.index(axis))


def _expanded(call: LayerCall) -> Choice:
    """Axes of one element repeat; others stay, counted from the last."""
    source, (made,) = call.op.inputs[0], call.op.outputs
    axis = call.axis(source)
    if axis is None:
        return _kept(call, None)
    place = axis + made.rank - source.rank
    return _kept(call, place, _smaller(call, place, made.shape[place]))


def _deepened(call: LayerCall) -> Choice:
    """A new axis of one element."""
    source = call.op.inputs[0]
    axis, (new,) = call.axis(source), call.dims("dim", 1, source.rank + 1)
    return _kept(call, None if axis is None else axis + (new <= axis))


def _squeezed(call: LayerCall) -> Choice:
    """Axes of one element go."""
    source = call.op.inputs[0]
    axis = call.axis(source)
    if axis is None:
        return _kept(call, None)
    gone = call.dims("dim", 1, source.rank) or range(source.rank)
    before = sum(source.shape[dim] == 1 for dim in gone if dim < axis)
    return _kept(call, axis - before)


def _cut(call: LayerCall) -> Choice:
    """Places along an axis: another one than that which is split."""
    source = call.op.inputs[0]
    axis, (along,) = call.axis(source), call.dims("dim", 1, source.rank) or (0,)
    if axis is None or axis == along:
        return WHOLE if call.place(source) != PART else _kept(call, None)
    lost = call.op.outputs and call.op.outputs[0].rank < source.rank
    return _kept(call, axis - bool(lost and along < axis))


def _padded(call: LayerCall) -> Choice:
    """More places at the ends of the last axes."""
    source, pad = call.op.inputs[0], call.option("pad", 1)
    axis, count = call.axis(source), len(pad) // 2 if isinstance(pad, tuple) else source.rank
    return _kept(call, axis if axis is not None and axis < source.rank - count else None)


def _put_back(call: LayerCall) -> Choice:
    """The gradient of places along an axis: zeros everywhere else."""
    axis, (made,) = call.axis(call.op.inputs[0]), call.op.outputs
    if axis is None or axis in call.dims("dim", 2, made.rank) or call.op.base != "slice_backward":
        return WHOLE
    sizes = call.option("input_sizes", 1)
    if not isinstance(sizes, tuple) or "input_sizes" not in call.op.attributes:
        return WHOLE
    smaller = (*sizes[:axis], made.shape[axis] // call.ranks, *sizes[axis + 1 :])
    return _kept(call, axis, {"input_sizes": smaller})


def _joined(call: LayerCall) -> Choice:
    """Tensors side by side, along another axis than that which is split."""
    tensors: Sequence[Tensor] = call.op.inputs
    axes = {call.axis(tensor) for tensor in tensors} - {None}
    along = call.dims("dim", 1, call.op.outputs[0].rank) or (0,)
    if len(axes) != 1 or axes & set(along) or call.op.base != "cat":
        return WHOLE
    place: LayerPlacement = split(int(next(iter(axes)) or 0))
    return Choice({tensor.name: place for tensor in tensors}, (place,))


VIEWS: Mapping[str, Rule] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten", "_reshape_alias"),
                    _reshaped),
    **dict.fromkeys(("t", "transpose", "swapaxes"), _turned),
    "permute": _permuted,
    **dict.fromkeys(("expand", "broadcast_to"), _expanded),
    "unsqueeze": _deepened,
    "squeeze": _squeezed,
    **dict.fromkeys(("slice", "select", "narrow", "unbind", "split", "chunk", "split_with_sizes"),
                    _cut),
    "cat": _joined,
    "constant_pad_nd": _padded,
    "slice_backward": _put_back,
}  # fmt: skip
"""By the last part of an op's name."""
