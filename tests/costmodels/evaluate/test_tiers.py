"""``irgraph evaluate tiers``: what it shows, and what it derives."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.evaluate.placing.evaluation import (
    EPOCHS,
    cached,
    evaluate_tiers,
    uncached,
    without_one,
)


def test_drives_are_within_what_their_tiers_say() -> None:
    for one in evaluate_tiers().drives:
        allowed = 0.10 if "Optane" in one.tier else 0.25
        assert one.reads == pytest.approx(one.published_reads, rel=allowed)
        assert one.us == pytest.approx(one.published_us, rel=allowed)


def test_what_the_others_took_where_one_was_slow() -> None:
    values = np.array([4.0] + [0.25] * (EPOCHS - 1))
    found = without_one(float(values.mean()), float(values.std()), EPOCHS)
    assert found == pytest.approx(0.25)


def test_epochs_stand_beside_what_was_published() -> None:
    """The published means hold one slow epoch: what is predicted lies below them."""
    first, second = evaluate_tiers().epochs
    assert (first.published, second.published) == (0.62, 0.06)
    assert first.predicted > second.predicted
    assert first.predicted == pytest.approx(first.others, rel=0.5)
    assert second.predicted == pytest.approx(second.others, rel=0.25)


def test_uncached_epochs_by_hand() -> None:
    """One large table: nearly all of 4,096 rows differ, each is read twice and written once."""
    assert uncached([10**9]) == pytest.approx(10 * 3 * 4096 * 512 / 12.4e9, rel=0.01)
    assert cached([10**9]) == 0.0
