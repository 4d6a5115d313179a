"""Predictions of the shipped models."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from costmodels.devices.library import load_device
from costmodels.learnable.hardware import hardware
from costmodels.learned.infer import Estimates, estimate
from costmodels.learned.weights import load_shipped


def products(sides: list[int], device: str = "v100-pcie-32gb", unseen: bool = False) -> Estimates:
    column = np.asarray(sides, np.float32)
    sizes = {"batch": np.ones_like(column), "m": column, "n": column, "k": column}
    sizes["op"] = np.zeros_like(column)
    return estimate(load_shipped("gemm"), sizes, hardware(load_device(device), unseen=unseen))


def test_a_middling_product_costs_what_it_should() -> None:
    """Between the roofline bound and one and a half times as much."""
    found = products([2048])
    bound = 2 * 2048**3 / 14e12 * 1e6
    assert bound * 0.9 < found.time[0] < bound * 1.5
    assert not found.outside[0]
    assert 0 < found.spread[0] < 0.25 * found.time[0]


def test_times_grow_beyond_the_training_range() -> None:
    found = products([2**p for p in range(13, 19)])
    assert (np.diff(found.time) > 0).all()
    growth = found.time[1:] / found.time[:-1]
    assert growth[1:] == pytest.approx(8, rel=0.1)
    assert found.outside[-3:].all()


def test_intervals_widen_beyond_the_training_range() -> None:
    width = products([2**15, 2**16, 2**17, 2**18]).width
    assert (np.diff(width) > 0).all()


def test_an_unseen_device_is_flagged_and_wide() -> None:
    known, unseen = products([1024]), products([1024], unseen=True)
    assert unseen.outside[0] and not known.outside[0]
    assert unseen.width[0] > 2 * known.width[0]
    assert unseen.time[0] == pytest.approx(known.time[0], rel=0.6)


def test_no_launch_is_in_a_kernel_time() -> None:
    """The floor of measured times is 66 us; so small a product takes a few."""
    assert products([16]).time[0] < 12


def test_one_row_or_many_give_the_same() -> None:
    sides = [17, 300, 2048, 9000]
    together = products(sides).time
    apart = [products([side]).time[0] for side in sides]
    np.testing.assert_allclose(together, apart, rtol=1e-5)


def test_inference_imports_neither_jax_nor_torch() -> None:
    code = (
        "import sys; from costmodels.learned.predictors import predictors;"
        "from costmodels.devices.library import load_device;"
        "ask = predictors(load_device('v100'), 'torch-2')['gemm'];"
        "ask({'dtype': 'f32', 'layout': 'tn', 'batch': 1, 'm': 64, 'n': 64, 'k': 64});"
        "assert not {'jax', 'torch', 'flax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
