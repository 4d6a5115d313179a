"""Intervals that are scaled anew are those that training gave."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.learned.weights import load_shipped
from costmodels.training.recalibrate import renewed


@pytest.mark.data
@pytest.mark.slow
def test_shipped_intervals_are_what_scaling_them_anew_gives(data_dir: Path) -> None:
    shipped, again = load_shipped("softmax"), renewed("softmax", data_dir)
    assert (again.stretch, again.cards) == (shipped.stretch, shipped.cards)
