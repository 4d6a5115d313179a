"""Which rows the experiments leave out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from costmodels.families import learned_families
from costmodels.training.recipe import read
from costmodels.training.study import (
    OCTAVES,
    _strangeness,
    short,
    smaller,
    thresholds,
    volume,
)


def test_smaller_shapes_end_octaves_below_the_largest(made_up: Path) -> None:
    data, _ = read("gemm", made_up)
    kept, limits = volume(data)[smaller(data)], thresholds(data)
    assert kept.max() <= limits.max() / 2**OCTAVES
    large = volume(data) >= limits
    assert 0.05 < large.mean() < 0.2
    assert not (large & smaller(data)).any()


def test_each_op_has_its_own_largest_shapes(made_up: Path) -> None:
    data, _ = read("gemm", made_up)
    assert len(np.unique(thresholds(data))) == 2


def test_experiments_are_shorter() -> None:
    settings = learned_families()["gemm"].settings
    assert short(settings).steps * 2 == settings.steps
    assert not short(settings).refit


def test_an_unseen_device_may_need_more_than_any_that_was_tried() -> None:
    """The widest need of three devices, and a third more."""
    needs = [[np.full(10, 0.1), np.full(10, 0.3)], [np.full(10, 0.2)], [np.full(10, 0.1)]]
    assert _strangeness(needs) == pytest.approx(0.4)


def test_only_what_pricing_asks_widens_intervals_on_cards_never_seen() -> None:
    for name, family in learned_families().items():
        assert set(family.campaign.asked) <= set(family.ops), name
    assert learned_families()["attention"].campaign.asked == ("causal", "full")


def test_many_rows_make_experiments_short_and_single() -> None:
    settings = learned_families()["gemm_units"].settings
    quick = short(settings)
    assert (quick.steps * 4, quick.architecture.members) == (settings.steps, 1)
