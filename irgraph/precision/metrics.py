"""Error metrics of a changed model's values and predictions; all sums in f64."""

from __future__ import annotations

import math
from typing import Any

Torch = Any


def l2(reference: Torch, changed: Torch) -> float:
    """Return the normalised L2 error ``|a - b| / |a|``, as ``torch.ao.ns`` but not in percent."""
    first, second = reference.double(), changed.double()
    size = float(first.norm())
    return float((first - second).norm()) / size if size else float(bool((second != 0).any()))


def decibels(error: float) -> float:
    """Return the signal-to-noise ratio of a normalised L2 error in decibels."""
    return -20 * math.log10(error) if error else math.inf


def divergence(reference: Torch, changed: Torch) -> float:
    """Return ``KL(reference || changed)`` of predictions in nats, the mean over samples.

    Logits [N] or [N, 1] are binary, [N, C] have C classes. If the reference is calibrated, this is
    the expected increase of the log loss.
    """
    from torch.nn.functional import log_softmax, logsigmoid

    first, second = reference.double(), changed.double()
    if is_binary(first):
        yes = first.sigmoid() * (logsigmoid(first) - logsigmoid(second))
        no = (-first).sigmoid() * (logsigmoid(-first) - logsigmoid(-second))
        return float((yes + no).mean())
    a, b = log_softmax(first, -1), log_softmax(second, -1)
    return float((a.exp() * (a - b)).sum(-1).mean())


def shift_vector(reference: Torch, movement: Torch) -> Torch:
    """Return the weighted movement of logits, f64[n], whose products are interactions.

    The divergence of a small movement is half the square of this vector, to second order (half the
    movement's variance under the reference's predictions, the mean over samples). The divergence of
    the sum of two movements is the sum of both and of the product of their vectors.
    """
    first, shift = reference.double(), movement.double()
    if is_binary(first):
        vector = (first.sigmoid() * (-first).sigmoid()).sqrt() * shift
    else:
        shares = first.softmax(-1)
        vector = shares.sqrt() * (shift - (shares * shift).sum(-1, keepdim=True))
    samples = first.numel() if is_binary(first) else first.numel() // first.shape[-1]
    return vector.flatten() / math.sqrt(max(samples, 1))


def entropy(logits: Torch) -> float:
    """Return the mean entropy of predictions in nats: their own expected log loss."""
    from torch.nn.functional import log_softmax, logsigmoid

    values = logits.double()
    if is_binary(values):
        terms = values.sigmoid() * logsigmoid(values) + (-values).sigmoid() * logsigmoid(-values)
        return -float(terms.mean())
    shares = log_softmax(values, -1)
    return -float((shares.exp() * shares).sum(-1).mean())


def losses(logits: Torch, labels: Torch) -> Torch:
    """Return the log loss of each sample, f64[N]; labels are probabilities or class indices."""
    from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

    values = logits.double()
    if is_binary(values):
        clicks = labels.double().flatten()
        return binary_cross_entropy_with_logits(values.flatten(), clicks, reduction="none")
    return cross_entropy(values.flatten(0, -2), labels.long().flatten(), reduction="none")


def normalized_entropy(logits: Torch, labels: Torch) -> float:
    """Return the log loss of labels over the entropy of their mean rates (public definition).

    ``nan`` if all labels are equal: their rate has no entropy.
    """
    if is_binary(logits):
        rate = float(labels.double().mean())
        rates = [rate, 1 - rate]
    else:
        counts = labels.long().flatten().bincount()
        rates = (counts.double() / counts.sum()).tolist()
    base = -sum(rate * math.log(rate) for rate in rates if rate > 0)
    return float(losses(logits, labels).mean()) / base if base else math.nan


def loss_increase(reference: Torch, changed: Torch, labels: Torch) -> tuple[float, float]:
    """Return the relative increase of the log loss on labels, and its standard error.

    ``nan`` if the reference has no loss; the error is ``nan`` for a single sample.
    """
    sample_losses = [losses(logits, labels) for logits in (reference, changed)]
    increase, base = sample_losses[1] - sample_losses[0], float(sample_losses[0].mean())
    if not base:
        return math.nan, math.nan
    error = (
        float(increase.std()) / math.sqrt(len(increase)) / base if len(increase) > 1 else math.nan
    )
    return float(increase.mean()) / base, error


def auc(logits: Torch, labels: Torch) -> float:
    """Return the area under the ROC curve; ties count half. ``nan`` if all labels are equal."""
    import torch

    scores, clicks = logits.double().flatten(), labels.flatten() > 0.5
    _, inverse, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks = (ends - (counts.double() - 1) / 2)[inverse]
    hits = int(clicks.sum())
    misses = len(clicks) - hits
    if not hits or not misses:
        return math.nan
    return (float(ranks[clicks].sum()) - hits * (hits + 1) / 2) / (hits * misses)


def is_binary(logits: Torch) -> bool:
    """Return whether logits are binary, not of several classes."""
    return bool(logits.dim() < 2 or logits.shape[-1] == 1)
