"""Which rows the experiments leave out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from costmodels.families import learned_families
from costmodels.training.recipe import read
from costmodels.training.study import (
    OCTAVES,
    experiment_settings,
    small_shape_rows,
    thresholds,
    unseen_width,
    volume,
)


def test_smaller_shapes_end_octaves_below_the_largest(made_up: Path) -> None:
    data, _ = read("gemm", made_up)
    kept, limits = volume(data)[small_shape_rows(data)], thresholds(data)
    assert kept.max() <= limits.max() / 2**OCTAVES
    large = volume(data) >= limits
    assert 0.05 < large.mean() < 0.2
    assert not (large & small_shape_rows(data)).any()


def test_each_op_has_its_own_largest_shapes(made_up: Path) -> None:
    data, _ = read("gemm", made_up)
    assert len(np.unique(thresholds(data))) == 2


def test_experiments_are_shorter() -> None:
    settings = learned_families()["gemm"].settings
    assert experiment_settings(settings).steps * 2 == settings.steps
    assert not experiment_settings(settings).refit


def test_an_unseen_device_is_taken_as_one_of_those_tried() -> None:
    """Nine tenths of all rows, with the same weight for each device, whatever its rows and ops."""
    few, many = np.full(10, 0.5), np.full(10_000, 0.1)
    assert unseen_width([[many], [few]]) == pytest.approx(0.5 * np.sqrt(1 + 1 / 2), abs=1e-4)
    thirds = [[many, many], [np.full(100, 0.2)], [np.linspace(0, 1, 1000)]]
    # three tenths of the third device are a tenth of all
    assert unseen_width(thirds) == pytest.approx(0.7 * np.sqrt(1 + 1 / 3), abs=0.01)


def test_only_what_pricing_asks_widens_intervals_on_cards_never_seen() -> None:
    for name, family in learned_families().items():
        assert set(family.campaign.priced_ops) <= set(family.ops), name
    assert learned_families()["attention"].campaign.priced_ops == ("causal", "full")


def test_many_rows_make_experiments_short_and_single() -> None:
    settings = learned_families()["gemm_units"].settings
    quick = experiment_settings(settings)
    assert (quick.steps * 4, quick.architecture.members) == (settings.steps, 1)
