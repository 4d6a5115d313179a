"""Times of convolution algorithms."""

from __future__ import annotations

import numpy as np

from costmodels.devices.library import load_device
from costmodels.learnable.conv_algorithms import Convolution, algorithm_times
from costmodels.learnable.hardware import hardware


def times(batch: int, inner: int, outer: int, side: int) -> np.ndarray:
    sides = [np.asarray([v], np.float32) for v in (batch, inner, outer, side, side, 3)]
    device = hardware(load_device("v100-pcie-32gb"))
    return np.concatenate(algorithm_times(Convolution(*sides), device))


def test_winograd_saves_multiplications_where_channels_are_many() -> None:
    implicit, fused, *_, apart = times(32, 512, 512, 56)
    assert apart < fused < implicit
    assert implicit / 2.25 < fused < implicit / 1.5


def test_few_channels_are_left_to_the_implicit_product() -> None:
    found = times(32, 3, 64, 112)
    assert found[0] == found.min()
