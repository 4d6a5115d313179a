"""Normalisation of layers, groups and batches, forward and backward."""

from __future__ import annotations

from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.meaning import ONE, OPAQUE, ArgumentKey, Axes, Axis, Meaning, Result
from irgraph.ops.operator import operators
from irgraph.ops.patterns import linear_sets
from irgraph.ops.shapes import letters


def _layer_axes(tensor: Tensor, axes: Axes, count: int) -> Axes:
    """Return the axes of a tensor of a norm over the last ``count`` axes.

    It is an image, a weight with the last axes alone, or a statistic of one element a row.
    """
    rank = len(axes)
    if tensor.rank == count and tensor.rank != rank:
        return axes[rank - count :]
    sizes = [*axes[: rank - count], *axes[rank - count :]]
    statistic = tensor.rank == rank and all(size == 1 for size in tensor.shape[rank - count :])
    if statistic:
        return (*axes[: rank - count], *(ONE,) * count)
    return tuple(sizes) if tensor.rank == rank else (OPAQUE,) * tensor.rank


def _layer_norm(call: Call) -> Meaning | None:
    """Return the meaning of a norm over the last axes, and of its gradients."""
    is_gradient = call.op.base.endswith("_backward")
    image = call.inputs[1] if is_gradient else call.inputs[0]
    sizes = call.numbers("normalized_shape")
    count = len(sizes)
    axes = letters(image.rank)
    first = image.rank - count
    arguments: dict[ArgumentKey, Axis] = {
        ("normalized_shape", i): axes[first + i] for i in range(count)
    }
    results = [Result(_layer_axes(tensor, axes, count)) for tensor in call.outputs]
    if is_gradient and count == image.rank:
        return None
    return Meaning(
        operands=tuple(_layer_axes(tensor, axes, count) for tensor in call.inputs),
        results=tuple(results),
        mixed=frozenset(map(str, axes[first:])),
        linear=linear_sets(call, ("grad_out",)) if is_gradient else (),
        arguments=arguments,
    )


def _batch_norm(call: Call) -> Meaning | None:
    """Return the meaning of a norm over samples and places of each channel, and its gradients.

    Tensors of one axis have an element for each channel. In training samples and places are mixed.
    """
    images = [t for t in (*call.inputs, *call.outputs) if t.rank > 1]
    if not images:
        return None
    rank = images[0].rank
    channels = images[0].shape[1]
    axes: Axes = ("n", "c", *(f"s{i}" for i in range(rank - 2)))

    def of(tensor: Tensor) -> Axes:
        if tensor.rank == rank:
            return axes
        return (
            ("c",) if tensor.rank == 1 and tensor.shape[0] == channels else (OPAQUE,) * tensor.rank
        )

    trains = any(call.flag(name) for name in ("training", "train", "use_input_stats"))
    is_gradient = call.op.base.endswith("_backward")
    mixes = trains or call.op.base.startswith("cudnn")
    return Meaning(
        operands=tuple(map(of, call.inputs)),
        results=tuple(Result(of(tensor)) for tensor in call.outputs),
        mixed=frozenset({"n", *axes[2:]} if mixes else ()),  # type: ignore[arg-type]
        linear=linear_sets(call, ("grad_out", "grad_output")) if is_gradient else (),
    )


def _group_norm(call: Call) -> Meaning | None:
    """Return the meaning of a norm over groups of channels and all places of each sample."""
    is_gradient = call.op.base.endswith("_backward")
    image = call.inputs[1] if is_gradient else call.inputs[0]
    axes: Axes = ("n", "c", *(f"s{i}" for i in range(image.rank - 2)))
    channels = image.shape[1]

    def of(tensor: Tensor) -> Axes:
        if tensor.rank == image.rank and tensor.shape == image.shape:
            return axes
        if tensor.rank == 1 and tensor.shape[0] == channels:
            return ("c",)
        if tensor.rank == 2:
            return ("n", "g")
        return (OPAQUE,) * tensor.rank

    return Meaning(
        operands=tuple(map(of, call.inputs)),
        results=tuple(Result(of(tensor)) for tensor in call.outputs),
        mixed=frozenset({"c", "g", *map(str, axes[2:])}),
        linear=linear_sets(call, ("grad_out",)) if is_gradient else (),
        sizes_by_torch=True,
    )


OPERATORS = {
    **operators(
        _layer_norm,
        "layer_norm native_layer_norm native_layer_norm_backward",
        text="*x d!, d!, d! -> *x d!, *x 1, *x 1",
    ),
    **operators(
        _batch_norm,
        "native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward "
        "_native_batch_norm_legit batch_norm _batch_norm_with_update batch_norm_backward",
        text="n! c *s!, c, c, c, c -> n! c *s!, c, c",
    ),
    **operators(
        _group_norm,
        "native_group_norm native_group_norm_backward",
        text="n c! *s!, c!, c! -> n c! *s!, n g!, n g!",
    ),
}
