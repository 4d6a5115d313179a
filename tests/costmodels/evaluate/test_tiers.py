"""``irgraph evaluate tiers``: what it shows, and what it derives."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.evaluate.tiers.evaluation import (
    EPOCHS,
    HALF_DIGIT,
    bounds_without_longest,
    cached_seconds,
    evaluate_tiers,
    uncached_seconds,
)


def test_drives_are_within_what_their_tiers_say() -> None:
    for one in evaluate_tiers().drives:
        allowed = 0.10 if "Optane" in one.tier else 0.25
        assert one.reads == pytest.approx(one.published_reads, rel=allowed)
        assert one.us == pytest.approx(one.published_us, rel=allowed)


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.5, 3.0])
def test_the_others_lie_within_the_bounds(spread: float) -> None:
    """Whatever the times were: one slow epoch, a few, or many of all sizes."""
    source = np.random.default_rng(7)
    for slow in (4.0, 60.0):
        values = 0.2 * np.exp(spread * source.standard_normal(EPOCHS))
        values[0] = slow
        said = float(values.mean().round(2)), float(values.std().round(2))
        low, high = bounds_without_longest(*said, EPOCHS)
        others = (values.sum() - values.max()) / (EPOCHS - 1)
        assert low <= others <= high
        if not spread:
            assert low == pytest.approx(0.2, abs=2 * HALF_DIGIT)


def test_epochs_stand_beside_what_was_published() -> None:
    """The published means hold one slow epoch: what is predicted lies below them."""
    first, second = evaluate_tiers().epochs
    assert (first.published, second.published) == (0.62, 0.06)
    assert first.predicted > second.predicted
    for one in (first, second):
        low, high = one.others
        assert low <= one.predicted <= high < one.published


def test_uncached_epochs_by_hand() -> None:
    """One large table: nearly all of 4,096 rows differ, each is read twice and written once."""
    assert uncached_seconds([10**9]) == pytest.approx(10 * 3 * 4096 * 512 / 12.4e9, rel=0.01)
    assert cached_seconds([10**9]) == 0.0
