"""Metrics of precision against torch, and against cases worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from irgraph.precision.metrics import (
    auc,
    decibels,
    divergence,
    entropy,
    l2,
    loss_increase,
    normalized_entropy,
)


def test_errors_are_those_of_torchs_own_numeric_suite() -> None:
    from torch.ao.ns.fx.utils import compute_normalized_l2_error, compute_sqnr

    torch.manual_seed(0)
    one = torch.randn(50, 8)
    other = one + 0.01 * torch.randn(50, 8)
    assert decibels(l2(one, other)) == pytest.approx(float(compute_sqnr(one, other)), rel=1e-4)
    assert l2(one, other) == pytest.approx(float(compute_normalized_l2_error(one, other)), rel=1e-4)
    assert l2(one, one) == 0 and decibels(0.0) == math.inf


def test_divergence_of_events_and_of_classes() -> None:
    p, q = 0.2, 0.25
    by_hand = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    logits = [torch.tensor([[math.log(x / (1 - x))]], dtype=torch.float64) for x in (p, q)]
    assert divergence(*logits) == pytest.approx(by_hand, rel=1e-12)
    classes = [torch.tensor([[math.log(x), math.log(1 - x)]], dtype=torch.float64) for x in (p, q)]
    assert divergence(*classes) == pytest.approx(by_hand, rel=1e-12)
    assert entropy(logits[0]) == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))
    far = torch.tensor([200.0, -200.0])
    assert divergence(far, far + 1) == pytest.approx(0, abs=1e-12), "no nan where p is 0 or 1"


def test_accuracy_with_labels() -> None:
    scores, clicks = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0.0, 0, 1, 1])
    assert auc(scores, clicks) == 0.75  # the textbook's example
    assert auc(torch.zeros(4), clicks) == 0.5
    assert normalized_entropy(torch.zeros(4), clicks) == pytest.approx(1.0)
    assert math.isnan(normalized_entropy(torch.zeros(4), torch.ones(4))), "all clicks: no entropy"
    share, error = loss_increase(torch.zeros(4), torch.full((4,), 1.0), clicks)
    assert share > 0 and error > 0
    assert loss_increase(scores, scores, clicks) == (0.0, 0.0)
