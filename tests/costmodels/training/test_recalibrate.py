"""Intervals that are scaled anew are those that training gave."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.learned.weights import load_shipped
from costmodels.training.recalibrate import recalibrate_family


@pytest.mark.data
@pytest.mark.slow
def test_shipped_intervals_are_what_scaling_them_anew_gives(data_dir: Path) -> None:
    shipped, again = load_shipped("softmax"), recalibrate_family("softmax", data_dir)
    # processors differ in the last digits of f32
    assert again.stretch == pytest.approx(shipped.stretch, rel=1e-4)
    assert again.cards == tuple(pytest.approx(card, rel=1e-4) for card in shipped.cards)
