"""Losses by element and by class, with their reductions, and their gradients."""

from __future__ import annotations

from irgraph.ops.call import Call
from irgraph.ops.meaning import IN_FIRST, Axes, Meaning, Result
from irgraph.ops.operator import Trait, operators
from irgraph.ops.patterns import linear_sets, new_results
from irgraph.ops.shapes import letters, opaque

NONE, MEAN, SUM = 0, 1, 2
"""Reductions of losses, by torch's numbers."""


def _by_element(call: Call) -> Meaning | None:
    """Return the meaning of a loss that is a mean or a sum over elements, or none of both.

    It is no linear function of its operands, but a sum over each of their axes.
    """
    shapes = {tensor.shape for tensor in call.inputs}
    if len(shapes) != 1:
        return None
    axes = letters(call.inputs[0].rank)
    elements = frozenset(axes)
    reduction = call.number("reduction", MEAN)
    is_reduced = reduction != NONE
    return Meaning(
        operands=(axes,) * len(call.inputs),
        results=new_results(call, () if is_reduced else axes),
        summed=elements if is_reduced else frozenset(),
        means=elements if reduction == MEAN else frozenset(),
    )


def _element_gradient(call: Call) -> Meaning | None:
    """Return the meaning of the gradient of a loss by element, from the gradient of the loss."""
    gradient, *operands = call.inputs
    shape = operands[0].shape
    if any(tensor.shape != shape for tensor in operands):
        return None
    axes = letters(len(shape))
    of_gradient = axes if gradient.shape == shape else ()
    if len(of_gradient) != gradient.rank:
        return None
    is_mean = call.number("reduction", MEAN) == MEAN
    return Meaning(
        operands=(of_gradient, *(axes,) * len(operands)),
        results=new_results(call, axes),
        linear=IN_FIRST,
        means=frozenset(axes if is_mean else ()),
    )


def _classes(call: Call) -> Meaning | None:
    """Return the meaning of a loss over classes: ``nll_loss``, of rows or of images.

    A mean divides by the weights of the samples, which is another number on each rank.
    """
    scores = call.inputs[0]
    if scores.rank < 2:
        return None
    places = letters(scores.rank - 2, "s")
    samples = ("n", *places)
    reduction = call.number("reduction", MEAN)
    weights = call.inputs[2:]
    loss: Axes = samples if reduction == NONE else ()
    results = (Result(loss), _weight_sum(call, reduction))
    return Meaning(
        operands=(("n", "c", *places), samples, *(("c",),) * len(weights)),
        results=results[: len(call.outputs)],
        mixed=frozenset({"c", *samples} if reduction == MEAN else {"c"}),
        linear=linear_sets(call, ("self",)),
        summed=frozenset(samples if reduction == SUM else ()),
    )


def _weight_sum(call: Call, reduction: int) -> Result:
    """Return the second result, the sum of the samples' weights; 0 without a reduction."""
    names = ("target", "weight") if reduction != NONE else ()
    return Result((), call.positions(*names))


def _classes_gradient(call: Call) -> Meaning | None:
    """Return the meaning of the gradient of a loss over classes."""
    scores = call.inputs[1]
    if scores.rank < 2:
        return None
    places = letters(scores.rank - 2, "s")
    samples = ("n", *places)
    of_scores = ("n", "c", *places)
    by_name: dict[str, Axes] = {"self": of_scores, "target": samples, "weight": ("c",)}
    operands: list[Axes] = []
    for name, span in call.spans.items():
        tensor = call.inputs[span[0]]
        # gradients of all samples, or of their mean or sum
        is_by_sample = tensor.rank == len(samples)
        axes = samples if is_by_sample else opaque(tensor)
        operands.append(by_name.get(name, axes))
    return Meaning(
        operands=tuple(operands),
        results=(Result(of_scores),),
        mixed=frozenset({"c"}),
        linear=IN_FIRST,
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
