"""Losses by element and by class, with their reductions, and their gradients."""

from __future__ import annotations

from irgraph.ops.call import Call
from irgraph.ops.meaning import OPAQUE, Axes, Meaning, Result
from irgraph.ops.operator import Trait, operators
from irgraph.ops.patterns import linear_sets
from irgraph.ops.shapes import letters

NONE, MEAN, SUM = 0, 1, 2
"""Reductions of losses, by torch's numbers."""


def _by_element(call: Call) -> Meaning | None:
    """Return the meaning of a loss that is a mean or a sum over elements, or none of both.

    It is no linear function of its operands, but a sum over each of their axes.
    """
    shape = call.inputs[0].shape
    if any(tensor.shape != shape for tensor in call.inputs):
        return None
    axes = letters(len(shape))
    reduction = call.number("reduction", MEAN)
    results = (Result(axes if reduction == NONE else ()),) * len(call.outputs)
    return Meaning(
        operands=(axes,) * len(call.inputs),
        results=results,
        summed=frozenset(map(str, axes)) if reduction != NONE else frozenset(),
        means=frozenset(map(str, axes)) if reduction == MEAN else frozenset(),
    )


def _element_gradient(call: Call) -> Meaning | None:
    """Return the meaning of the gradient of a loss by element, from the gradient of the loss."""
    gradient, *operands = call.inputs
    shape = operands[0].shape
    if any(tensor.shape != shape for tensor in operands):
        return None
    axes = letters(len(shape))
    of_gradient = axes if gradient.shape == shape and shape else ()
    if len(of_gradient) != gradient.rank:
        return None
    is_mean = call.number("reduction", MEAN) == MEAN
    return Meaning(
        operands=(of_gradient, *(axes,) * len(operands)),
        results=(Result(axes),) * len(call.outputs),
        linear=(frozenset({0}),),
        means=frozenset(map(str, axes)) if is_mean else frozenset(),
    )


def _classes(call: Call) -> Meaning | None:
    """Return the meaning of a loss over classes: ``nll_loss``, of rows or of images.

    A mean divides by the weights of the samples, which is another number on each rank.
    """
    scores = call.inputs[0]
    if scores.rank < 2:
        return None
    places = tuple(f"s{i}" for i in range(scores.rank - 2))
    outer: Axes = ("n", *places)
    reduction = call.number("reduction", MEAN)
    operands: tuple[Axes, ...] = (("n", "c", *places), outer, *(("c",),) * len(call.inputs[2:]))
    result: Axes = outer if reduction == NONE else ()
    mixed = {"c", *(map(str, outer) if reduction == MEAN else ())}
    return Meaning(
        operands=operands,
        results=(Result(result), _weight_sum(call, reduction))[: len(call.outputs)],
        mixed=frozenset(mixed),
        linear=linear_sets(call, ("self",)),
        summed=frozenset(map(str, outer)) if reduction == SUM else frozenset(),
    )


def _weight_sum(call: Call, reduction: int) -> Result:
    """Return the second result, the sum of the samples' weights; 0 without a reduction."""
    names = ("target", "weight") if reduction != NONE else ()
    return Result((), frozenset(i for name in names for i in call.spans.get(name, ())))


def _classes_gradient(call: Call) -> Meaning | None:
    """Return the meaning of the gradient of a loss over classes."""
    scores = call.inputs[1]
    if scores.rank < 2:
        return None
    places = tuple(f"s{i}" for i in range(scores.rank - 2))
    outer: Axes = ("n", *places)
    of_scores: Axes = ("n", "c", *places)
    operands: list[Axes] = []
    for name, span in sorted(call.spans.items(), key=lambda item: item[1][0]):
        axes = {"self": of_scores, "target": outer, "weight": ("c",)}.get(name)
        tensor = call.inputs[span[0]]
        if axes is None:
            axes = outer if tensor.rank == len(outer) and tensor.rank else (OPAQUE,) * tensor.rank
        operands.append(axes)
    return Meaning(
        operands=tuple(operands),
        results=(Result(of_scores),),
        mixed=frozenset({"c"}),
        linear=(frozenset({0}),),
    )


CLASSES = "n c! *s, n *s, c! -> ()"

OPERATORS = {
    **operators(
        _by_element,
        "mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss "
        "binary_cross_entropy_with_logits",
        text="*x, *x -> ()",
    ),
    **operators(
        _by_element,
        "binary_cross_entropy",
        text="*x, *x -> ()",
        traits=[Trait.NONNEGATIVE],
    ),
    **operators(
        _element_gradient,
        "mse_loss_backward l1_loss_backward smooth_l1_loss_backward huber_loss_backward "
        "binary_cross_entropy_backward soft_margin_loss_backward",
        text="(), *x, *x -> *x",
    ),
    **operators(
        _classes, "nll_loss_forward nll_loss2d_forward", text=CLASSES, traits=[Trait.CLASS_LOSS]
    ),
    **operators(_classes, "nll_loss", text=CLASSES),
    **operators(
        _classes_gradient,
        "nll_loss_backward nll_loss2d_backward",
        text="(), n c! *s, n *s, c!, () -> n c! *s",
    ),
}
