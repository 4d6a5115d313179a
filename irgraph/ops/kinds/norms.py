"""Normalisation of layers, groups and batches, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.meaning import ONE, Arguments, Axes, Axis, Meaning, Merged, Result
from irgraph.ops.operator import Operator, Trait, operators
from irgraph.ops.patterns import linear_sets, pattern
from irgraph.ops.shapes import letters, opaque

STATISTICS = ("mean", "rstd")
"""Arguments with one element for each row."""

TRAINING = ("training", "train", "use_input_stats")
"""Arguments that are true in training."""

GRADIENTS = ("grad_out", "grad_output")
"""Arguments that are the gradient of the result."""


def _image(call: Call) -> Tensor:
    """Return the tensor that is normalised, which gradients have after the result's gradient."""
    return call.inputs[1] if call.is_gradient else call.inputs[0]


def _layer_norm(call: Call) -> Meaning | None:
    """Return the meaning of a norm over the last axes, and of its gradients."""
    image = _image(call)
    sizes = call.numbers("normalized_shape")
    first = image.rank - len(sizes)
    if first < 0 or (call.is_gradient and not first):
        return None
    axes = letters(image.rank)
    weight = axes[first:]
    ones = (ONE,) * len(sizes)
    statistic: Axes = (*axes[:first], *ones)
    by_name = {"weight": weight, "bias": weight, **dict.fromkeys(STATISTICS, statistic)}
    operands: list[Axes] = []
    for name, span in call.spans.items():
        operands += [by_name.get(name, axes)] * len(span)
    extra = weight if call.is_gradient else statistic
    results: list[Result] = []
    for declared, result in zip((axes, extra, extra), call.op.results, strict=False):
        if isinstance(result, Tensor):
            results.append(Result(declared))
    arguments: Arguments = {}
    for index, axis in enumerate(weight):
        arguments["normalized_shape", index] = axis
    return Meaning(
        operands=tuple(operands),
        results=tuple(results),
        mixed=frozenset(weight),
        linear=linear_sets(call, GRADIENTS) if call.is_gradient else (),
        arguments=arguments,
    )


def _batch_norm(call: Call) -> Meaning | None:
    """Return the meaning of a norm over samples and places of each channel, and its gradients.

    Tensors of one axis have an element for each channel. In training samples and places are mixed.
    """
    tensors = (*call.inputs, *call.outputs)
    images = [tensor for tensor in tensors if tensor.rank > 1]
    if not images:
        return None
    image = images[0]
    channels = image.shape[1]
    places = letters(image.rank - 2, "s")

    def of(tensor: Tensor) -> Axes:
        if tensor.rank == image.rank:
            return ("n", "c", *places)
        return ("c",) if tensor.shape == (channels,) else opaque(tensor)

    trains = any(map(call.flag, TRAINING))
    mixes = trains or call.op.base.startswith("cudnn")
    if mixes and not call.is_gradient and image.numel == channels:
        # one element has no variance
        return None
    mixed = frozenset({"n", *places} if mixes else ())
    return Meaning(
        operands=tuple(map(of, call.inputs)),
        results=tuple(Result(of(tensor)) for tensor in call.outputs),
        mixed=mixed,
        bounded=mixed,
        linear=linear_sets(call, GRADIENTS) if call.is_gradient else (),
    )


def _group_norm(call: Call) -> Meaning | None:
    """Return the meaning of a norm over groups of channels and all places of each sample."""
    image = _image(call)
    groups = call.number("group", 1)
    if image.rank < 2 or groups < 1 or image.shape[1] % groups:
        return None
    channels = Merged(("g", "c"))
    places = letters(image.rank - 2, "s")

    def of(tensor: Tensor) -> Axes:
        if tensor.shape == image.shape:
            return ("n", channels, *places)
        if tensor.rank == 2:
            return ("n", "g")
        return (channels,) if tensor.rank == 1 else opaque(tensor)

    stated: dict[str, Axis] = {"N": "n", "C": channels, "group": "g"}
    arguments: Arguments = {}
    for name, axis in stated.items():
        if name in call.arguments:
            arguments[name, -1] = axis
    return Meaning(
        operands=tuple(map(of, call.inputs)),
        results=tuple(Result(of(tensor)) for tensor in call.outputs),
        mixed=frozenset({"c", *places}),
        linear=linear_sets(call, GRADIENTS) if call.is_gradient else (),
        arguments=arguments,
        fixed=frozenset({"c"}),
        sizes={"c": image.shape[1] // groups},
        sizes_by_torch=True,
    )


def _declared(
    name: str,
    text: str,
    linear: Sequence[str] = (),
) -> dict[str, Operator]:
    """Return the declaration of a part of a batch norm, whose axes a text states."""
    return operators(pattern(text, *linear), name, text=text)


OPERATORS = {
    **operators(
        _layer_norm,
        "layer_norm native_layer_norm native_layer_norm_backward _fused_rms_norm "
        "_fused_rms_norm_backward",
        text="*x d!, d!, d! -> *x d!, *x 1, *x 1",
    ),
    **operators(
        _batch_norm,
        "native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward "
        "_native_batch_norm_legit batch_norm _batch_norm_with_update batch_norm_backward",
        text="n! c *s!, c, c, c, c -> n! c *s!, c, c",
        traits=[Trait.BATCH_NORM],
    ),
    **_declared("batch_norm_stats", "n! c *s! -> c, c"),
    **_declared("batch_norm_gather_stats_with_counts", "n! c *s!, r! c, r! c, c, c, r! -> c, c"),
    **_declared("batch_norm_elemt", "n c *s, c, c, c, c -> n c *s"),
    **_declared(
        "batch_norm_backward_reduce",
        "n c *s, n c *s, c, c, c -> c, c, c, c",
        linear=("grad_out",),
    ),
    **_declared(
        "batch_norm_backward_elemt",
        "n c *s, n c *s, c, c, c, c, c, r! -> n c *s",
        linear=("grad_out sum_dy sum_dy_xmu",),
    ),
    **operators(
        _group_norm,
        "native_group_norm native_group_norm_backward",
        text="n (g c!) *s!, (g c!), (g c!) -> n (g c!) *s!, n g, n g",
        traits=[Trait.CONTIGUOUS],
    ),
}
