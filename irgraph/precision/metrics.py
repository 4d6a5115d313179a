"""How far a changed model's values and predictions are from the reference's; all sums in f64."""

from __future__ import annotations

import math
from typing import Any

Torch = Any


def l2(reference: Torch, changed: Torch) -> float:
    """Return the normalised L2 error, ``|a - b| / |a|`` (``torch.ao.ns``'s, as a share of one)."""
    first, second = reference.double(), changed.double()
    size = float(first.norm())
    return float((first - second).norm()) / size if size else float(bool((second != 0).any()))


def sqnr(reference: Torch, changed: Torch) -> float:
    """Return the signal to quantisation noise ratio in decibels."""
    return decibels(l2(reference, changed))


def decibels(error: float) -> float:
    """Return the signal to noise ratio of a normalised L2 error, ``-20 log10`` of it."""
    return -20 * math.log10(error) if error else math.inf


def divergence(reference: Torch, changed: Torch) -> float:
    """Return ``KL(reference || changed)`` of predictions from their logits, nats, mean of samples.

    Logits [N] or [N, 1] are of one event each, [N, C] of C classes. Where the reference is
    calibrated it is the expected rise of the log loss.
    """
    from torch.nn.functional import log_softmax, logsigmoid

    first, second = reference.double(), changed.double()
    if _single(first):
        yes = first.sigmoid() * (logsigmoid(first) - logsigmoid(second))
        no = (-first).sigmoid() * (logsigmoid(-first) - logsigmoid(-second))
        return float((yes + no).mean())
    a, b = log_softmax(first, -1), log_softmax(second, -1)
    return float((a.exp() * (a - b)).sum(-1).mean())


def leaning(reference: Torch, moved: Torch) -> Torch:
    """Return how logits moved, f64[n], so that products of two are what their movements share.

    The divergence of a small movement is half the square of this vector, to second order (half the
    movement's variance under the reference's predictions, mean of samples); that of the sum of two
    movements is both divergences and the product of their vectors.
    """
    first, shift = reference.double(), moved.double()
    if _single(first):
        weighed = (first.sigmoid() * (-first).sigmoid()).sqrt() * shift
    else:
        shares = first.softmax(-1)
        weighed = shares.sqrt() * (shift - (shares * shift).sum(-1, keepdim=True))
    samples = first.numel() if _single(first) else first.numel() // first.shape[-1]
    return weighed.flatten() / math.sqrt(max(samples, 1))


def entropy(logits: Torch) -> float:
    """Return the mean entropy of predictions, nats: the log loss that they expect of themselves."""
    from torch.nn.functional import log_softmax, logsigmoid

    values = logits.double()
    if _single(values):
        each = values.sigmoid() * logsigmoid(values) + (-values).sigmoid() * logsigmoid(-values)
        return -float(each.mean())
    shares = log_softmax(values, -1)
    return -float((shares.exp() * shares).sum(-1).mean())


def normalized_entropy(logits: Torch, labels: Torch) -> float:
    """Return the log loss of clicks over the entropy of their mean rate (public definition).

    ``nan`` where all are clicks or none is: their rate has no entropy.
    """
    from torch.nn.functional import binary_cross_entropy_with_logits as loss

    clicks = labels.double().flatten()
    rate = float(clicks.mean())
    if not 0 < rate < 1:
        return math.nan
    base = -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))
    return float(loss(logits.double().flatten(), clicks)) / base


def rise(reference: Torch, changed: Torch, labels: Torch) -> tuple[float, float]:
    """Return by what share the log loss rises on labels, and the standard error of that."""
    from torch.nn.functional import binary_cross_entropy_with_logits as loss

    clicks = labels.double().flatten()
    each = [loss(z.double().flatten(), clicks, reduction="none") for z in (reference, changed)]
    step, base = each[1] - each[0], float(each[0].mean())
    return float(step.mean()) / base, float(step.std()) / math.sqrt(len(step)) / base


def auc(logits: Torch, labels: Torch) -> float:
    """Return the area under the ROC curve: the chance that a click ranks above none; ties half."""
    import torch

    scores, clicks = logits.double().flatten(), labels.flatten() > 0.5
    _, where, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks = (ends - (counts.double() - 1) / 2)[where]
    hits = int(clicks.sum())
    others = len(clicks) - hits
    if not hits or not others:
        return math.nan
    return (float(ranks[clicks].sum()) - hits * (hits + 1) / 2) / (hits * others)


def _single(logits: Torch) -> bool:
    return bool(logits.dim() < 2 or logits.shape[-1] == 1)
