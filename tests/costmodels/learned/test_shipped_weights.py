"""The shipped weights against the measurements they were held back from."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import to_builtins

from costmodels.devices.library import load_device
from costmodels.families import learned_families
from costmodels.learnable.hardware import figures
from costmodels.learned.weights import load_shipped, shipped_models
from costmodels.training.recipe import held_out_errors, read

MOST = {
    ("gemm", "all"): {"V100-PCIE-32GB": 3.0, "A100-PCIE-40GB": 3.0, "P100-PCIE-16GB": 3.0},
    ("elementwise", "long"): {"V100-PCIE-32GB": 1.5, "A100-PCIE-40GB": 1.5, "P100-PCIE-16GB": 1.5},
    ("softmax", "all"): {"V100-PCIE-32GB": 2.5, "A100-PCIE-40GB": 2.5, "P100-PCIE-16GB": 2.5},
    ("layer_norm", "all"): {"V100-PCIE-32GB": 1.7, "A100-PCIE-40GB": 1.7, "P100-PCIE-16GB": 1.7},
    ("conv2d", "all"): {"V100-PCIE-32GB": 4.0, "P100-PCIE-16GB": 4.0},
}
"""Greatest GMAE in percent, by family, part of its rows, and device."""


@pytest.mark.parametrize("family", sorted({family for family, _ in MOST}))
def test_device_sheets_are_those_of_training(family: str) -> None:
    """A changed sheet asks for new training: `irgraph train FAMILY`."""
    for name, figures_then in load_shipped(family).made["sheets"].items():
        now = figures(load_device(name))
        assert {key: now[key] for key in figures_then} == pytest.approx(figures_then), name


@pytest.mark.parametrize("family", shipped_models())
def test_a_family_is_trained_as_its_shipped_weights_were(family: str) -> None:
    assert to_builtins(learned_families()[family].settings) == load_shipped(family).made["settings"]


@pytest.mark.data
@pytest.mark.parametrize("family", shipped_models())
@pytest.mark.slow
def test_held_out_errors_are_what_the_weights_say(family: str, data_dir: Path) -> None:
    weights = load_shipped(family)
    data, device = read(family, data_dir)
    assert weights.made["data"][data.source] == data.sha256
    for what, parts in held_out_errors(weights, data, device).items():
        for part, figures_now in parts.items():
            said = weights.made["held_out_pct"][what][part]
            assert figures_now["gmae"] == pytest.approx(said["gmae"], abs=0.01), (what, part)


@pytest.mark.parametrize(("family", "part"), MOST)
def test_errors_are_small_enough(family: str, part: str) -> None:
    for what, parts in load_shipped(family).made["held_out_pct"].items():
        device = what.partition(" ")[2]
        limit = MOST[family, part].get(device)
        if limit is not None:
            assert parts[part]["gmae"] <= limit, what
