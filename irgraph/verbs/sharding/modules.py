"""Placement rules of norms, softmax, attention, embeddings and losses over classes.

Results may differ in kind: a norm's gradient of data is split, its gradients of weights are parts
of sums. Therefore the rules of this module return a placement for each result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from irgraph.verbs.sharding.batch_placement import (
    SAME,
    SPLIT,
    BatchCall,
    BatchPlacement,
    PartialSumError,
)

NONE, MEAN = 0, 1
"""Reductions of losses, by torch's numbers."""

Rule: TypeAlias = Callable[[BatchCall], tuple[BatchPlacement, ...]]


def _check_unscaled(call: BatchCall, first: int = 0) -> None:
    """Refuse operands that are parts of sums, and scaled gradients from position ``first`` on."""
    placements = call.placements_of()
    if any(placement.kind == "part" for placement in placements):
        raise PartialSumError
    if any(placement.factor for placement in placements[first:]):
        raise call.refuse("is not linear in a gradient that was scaled by the number of ranks")


def _split_or_partial(call: BatchCall, factor: int) -> tuple[BatchPlacement, ...]:
    """Return results with a batch axis as split, others as parts of sums over samples."""
    axes = (call.axis(tensor) for tensor in call.op.outputs)
    return tuple(BatchPlacement("part" if axis is None else "split", factor) for axis in axes)


def _norm(call: BatchCall) -> tuple[BatchPlacement, ...]:
    """Normalisation over the last axes of each sample."""
    _check_unscaled(call)
    _check_normalized_axes(call)
    return tuple(SPLIT for _ in call.op.outputs)


def _check_normalized_axes(call: BatchCall) -> None:
    position = int(call.op.base.endswith("backward"))
    over, source = call.option("normalized_shape", position + 1), call.op.inputs[position]
    axis = call.axis(source)
    if not isinstance(over, tuple) or axis is None or axis >= source.rank - len(over):
        raise call.refuse("normalises over samples")


def _norm_gradient(call: BatchCall) -> tuple[BatchPlacement, ...]:
    """Gradients of normalisation: of data per sample, of weights summed over samples."""
    _check_unscaled(call, 1)
    _check_normalized_axes(call)
    return _split_or_partial(call, call.placement_of(call.op.inputs[0]).factor)


def _softmax(call: BatchCall) -> tuple[BatchPlacement, ...]:
    """Softmax along an axis, and its gradient, which is linear in the first operand."""
    gradient = "backward" in call.op.base
    _check_unscaled(call, int(gradient))
    source = call.op.inputs[0]
    dim = call.option("dim", 2 if gradient else 1)
    if not isinstance(dim, int) or call.axis(source) == dim % source.rank:
        raise call.refuse("normalises over samples")
    return (BatchPlacement("split", call.placement_of(source).factor),)


def _embedding(call: BatchCall) -> tuple[BatchPlacement, ...]:
    """Lookup of rows in a table that all ranks have."""
    _check_unscaled(call)
    if call.axis(call.op.inputs[0]) is not None:
        raise call.refuse("looks up samples by their position in the batch")
    return (SPLIT,)


def _embedding_gradient(call: BatchCall) -> tuple[BatchPlacement, ...]:
    """Gradient of a table that all ranks have: a sum over samples."""
    _check_unscaled(call, 1)
    if call.option("scale_grad_by_freq", 4, default=False):
        raise call.refuse("counts how often samples of all ranks name a row")
    return _split_or_partial(call, call.placement_of(call.op.inputs[0]).factor)


def _class_loss(call: BatchCall) -> tuple[BatchPlacement, ...]:
    """The sum of a loss over classes, and of the weights of its samples: see ``losses``."""
    _check_unscaled(call)
    if call.option("reduction", 3, MEAN) == NONE:
        return (SPLIT, SAME)
    return (BatchPlacement("part"), BatchPlacement("part"))


def _class_loss_gradient(call: BatchCall) -> tuple[BatchPlacement, ...]:
    """Gradient of a loss over classes; a mean is divided by the weights of all ranks' samples."""
    *others, count = call.placements_of()
    if any(placement.kind == "part" for placement in others):
        raise PartialSumError
    if any(placement.factor for placement in others[1:]):
        raise call.refuse("takes activations that are gradients")
    if call.option("reduction", 4, MEAN) == MEAN and count.kind == "part":
        raise PartialSumError
    return (BatchPlacement("split", others[0].factor),)


def _attention(call: BatchCall) -> tuple[BatchPlacement, ...]:
    """Fused attention, which combines words of one sample, and its gradient."""
    gradient = "backward" in call.op.base
    _check_unscaled(call, int(gradient))
    if {call.axis(tensor) for tensor in call.op.inputs} - {None} != {0}:
        raise call.refuse("mixes samples, or has them along another axis than the first")
    if gradient:
        return _split_or_partial(call, call.placement_of(call.op.inputs[0]).factor)
    axes = (call.axis(tensor) for tensor in call.op.outputs)
    return tuple(SAME if axis is None else SPLIT for axis in axes)


MODULES: Mapping[str, Rule] = {
    "native_layer_norm": _norm,
    "native_layer_norm_backward": _norm_gradient,
    **dict.fromkeys(
        ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
        _softmax,
    ),
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_gradient,
    "nll_loss_forward": _class_loss,
    "nll_loss_backward": _class_loss_gradient,
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
