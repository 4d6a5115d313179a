"""Telling the host's launch from the kernel's time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from costmodels.devices.library import load_device
from costmodels.families import learned_families
from costmodels.learnable.hardware import hardware
from costmodels.learnable.inputs import START
from costmodels.learnable.launch import (
    HostLaunch,
    borrowed_launches,
    growing_launches,
)
from costmodels.learnable.measurements import Measurements
from costmodels.training.recipe import launches, read
from irgraph.diagnostics import IrgraphError


def test_the_launch_of_made_up_ops_is_found(made_up: Path) -> None:
    found = launches("elementwise", made_up)
    assert set(found) == {("add", "A100-PCIE-40GB"), ("add", "V100-PCIE-32GB")}
    for launch in found.values():
        assert launch.floor == pytest.approx(35.0, abs=0.1)
        assert launch.before == pytest.approx(20.0, abs=0.6)


def test_an_op_without_a_law_hides_what_others_hide(made_up: Path) -> None:
    data, device = read("softmax", made_up)
    base = learned_families()["softmax"].inputs(data.sizes, device).base
    similar = {("add", name): HostLaunch(5.0, 12.0) for name in data.devices}
    for launch in borrowed_launches(data, device, base, similar).values():
        assert launch.hidden == pytest.approx(12.0)
        assert launch.floor == pytest.approx(35.0, abs=0.1)


def test_an_op_to_which_none_is_similar_is_refused(made_up: Path) -> None:
    data, device = read("softmax", made_up)
    base = learned_families()["softmax"].inputs(data.sizes, device).base
    with pytest.raises(IrgraphError, match=r"softmax hides on .*\n.*similar="):
        borrowed_launches(data, device, base, {})


def test_held_out_rows_do_not_count(made_up: Path) -> None:
    data, device = read("elementwise", made_up)
    family = learned_families()["elementwise"]
    base = family.inputs(data.sizes, device).base
    before = family.launches(data, device, base, {})
    data.times[data.dev] = np.float32(1e6)
    assert family.launches(data, device, base, {}) == before


@pytest.mark.data
def test_launches_of_real_products_fit_the_floor(data_dir: Path) -> None:
    found = launches("gemm", data_dir)
    assert len(found) == 8
    for launch in found.values():
        assert 10 < launch.before < 80
        assert 30 < launch.floor < 110


def test_a_launch_that_grows_over_the_run_is_told_from_the_kernels() -> None:
    """Short convolutions whose launch goes from 40 to 240 us, whatever their size."""
    rng = np.random.default_rng(0)
    kernel = rng.uniform(5, 400, 900).astype(np.float32)
    place = np.linspace(0, 1, 900, dtype=np.float32)
    data = Measurements(
        "conv2d",
        ("conv",),
        {"op": np.zeros(900, np.float32)},
        ("T4",),
        np.zeros(900, np.intp),
        40 + 200 * place + 1.2 * kernel,
        np.zeros(900, np.bool_),
        np.full(900, ""),
        place,
    )
    similar = {("linear", "T4"): HostLaunch(50.0, 10.0)}
    law = growing_launches(lambda data, device: kernel, "linear")
    found = law(data, hardware(load_device("t4")), kernel, similar)["conv", "T4"]
    assert found.hidden == 10
    grown = found.before + found.drift_at(np.asarray([0.0, 0.5, 1.0], np.float32))
    assert grown == pytest.approx([40, 140, 240], abs=START + 1)
