"""Weights on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from costmodels.learned.weights import load, load_shipped, save, shipped_models
from irgraph.diagnostics import IrgraphError


def test_weights_survive_a_file(tmp_path: Path) -> None:
    weights = replace(load_shipped("softmax"), unseen=0.5, octave=0.25)
    save(weights, tmp_path / "w.safetensors")
    again = load(tmp_path / "w.safetensors")
    assert (again.unseen, again.octave, again.launches) == (0.5, 0.25, weights.launches)
    assert again.made == weights.made
    for (a, b), (c, d) in zip(weights.layers, again.layers, strict=True):
        np.testing.assert_array_equal(a, c)
        np.testing.assert_array_equal(b, d)


def test_figures_by_card_survive_a_file(tmp_path: Path) -> None:
    table = ((1.0, 2.0, 0.5, 1.0, 1.0),)
    weights = replace(load_shipped("softmax"), cards=table, octaves=table)
    save(weights, tmp_path / "w.safetensors")
    again = load(tmp_path / "w.safetensors")
    assert (again.cards, again.octaves) == (table, table)


def test_equal_weights_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(load_shipped("softmax"), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("no weights")
    with pytest.raises(IrgraphError, match="cannot read weights"):
        load(tmp_path / "w")


def test_foreign_tensors_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "w")
    with pytest.raises(IrgraphError, match="not weights of irgraph's format"):
        load(tmp_path / "w")


def test_an_unknown_family_gets_a_near_word() -> None:
    with pytest.raises(IrgraphError, match=r"no trained model of family 'softmix'.*softmax"):
        load_shipped("softmix")


def test_every_family_is_shipped_with_its_story() -> None:
    single = ("conv2d", "elementwise", "gemm", "layer_norm", "softmax")
    assert shipped_models() == tuple(sorted((*single, "attention", "gemm_units", "transformer")))
    for family in shipped_models():
        made = load_shipped(family).made
        assert made["command"].startswith(f"irgraph train {family}")
        assert made["data"] and made["settings"] and made["held_out_pct"] and made["versions"]
