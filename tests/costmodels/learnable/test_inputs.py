"""What models see of kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.devices.library import load_device
from costmodels.families import learned_families
from costmodels.learnable.family import LearnedFamily
from costmodels.learnable.hardware import TRAINING_CARDS, datasheet_only, figures, hardware
from costmodels.learnable.inputs import START

SIDE = st.integers(1, 4096)


def inputs(family: LearnedFamily, values: list[int], unseen: bool = False) -> np.ndarray:
    sizes = {n: np.asarray([v], np.float32) for n, v in zip(family.sizes, values, strict=False)}
    sizes |= {"op": np.zeros(1, np.float32)}
    return family.inputs(sizes, hardware(load_device("v100-pcie-32gb"), unseen=unseen)).matrix()


PLAIN = sorted(learned_families().keys() - {"conv2d"})
"""Families that take any sizes."""


@given(st.sampled_from(PLAIN), st.tuples(*[SIDE] * 8))
def test_inputs_are_finite(name: str, values: tuple[int, ...]) -> None:
    matrix = inputs(learned_families()[name], list(values))
    assert matrix.dtype == np.float32
    assert np.isfinite(matrix).all()


@given(st.tuples(SIDE, SIDE, SIDE), st.integers(1, 250))
def test_convolution_inputs_are_finite(channels: tuple[int, int, int], side: int) -> None:
    assert np.isfinite(inputs(learned_families()["conv2d"], [*channels, 3, side, 1, 1])).all()


@given(st.sampled_from(["gemm", "elementwise"]), st.tuples(*[SIDE] * 4), st.integers(0, 1))
def test_no_base_undercuts_the_roofline(name: str, values: tuple[int, ...], op: int) -> None:
    sheet = load_device("v100-pcie-32gb")
    batch, m, n, k = values if op else (1, *values[1:])
    column = {"batch": batch, "m": m, "n": n, "k": k, "rows": m, "cols": n, "op": op}
    sizes = {name: np.asarray([v], np.float32) for name, v in column.items()}
    base = learned_families()[name].inputs(sizes, hardware(sheet)).base[0]
    compute = 2 * batch * m * n * k / sheet.peak("f32")[0] / 1e3
    memory = 4 * batch * (m * k + k * n + m * n) / sheet.bandwidth / 1e3
    if name == "elementwise":
        compute, memory = 0, 12 * m * n / sheet.bandwidth / 1e3
    assert base >= (max(compute, memory) + START) * 0.99999


def test_very_large_products_look_alike() -> None:
    """Inputs settle, so that a model trained on smaller products knows what to say."""
    one = inputs(learned_families()["gemm"], [1, 2**14, 2**14, 2**14])
    two = inputs(learned_families()["gemm"], [1, 2**15, 2**15, 2**15])
    assert np.abs(one - two).max() < 0.11


def test_an_unseen_device_has_no_name() -> None:
    flags = inputs(learned_families()["softmax"], [8, 8], unseen=True)[-len(TRAINING_CARDS) :]
    assert not flags.any()
    assert inputs(learned_families()["softmax"], [8, 8])[-len(TRAINING_CARDS) :].sum() == 1


def test_variants_of_a_card_count_as_the_card() -> None:
    assert (
        hardware(load_device("v100-sxm2-16gb")).indicators[TRAINING_CARDS.index("V100-PCIE-32GB")]
        == 1
    )


def test_a_datasheet_alone_holds_no_measurement() -> None:
    sheet = datasheet_only(load_device("p100"))
    assert sheet.dram_gbs.measured is None
    assert figures(sheet)["dram_gbs"] == pytest.approx(732 * 0.9)
