"""``irgraph train`` and ``irgraph models``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodels.learned.weights import load
from irgraph.cli.main import main


def test_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["family"] for row in rows} >= {"gemm", "softmax"}
    assert all(row["GMAE %"] > 0 for row in rows)


def test_an_unknown_family_gets_a_near_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "gem", "--data", "."]) == 2
    assert "did you mean 'gemm'?" in capsys.readouterr().err


def test_training_asks_for_measurements(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IRGRAPH_DATA", raising=False)
    assert main(["train", "gemm"]) == 2
    assert "no folder of measurements" in capsys.readouterr().err


@pytest.mark.slow
def test_weights_are_written(made_up: Path, tmp_path: Path) -> None:
    output = tmp_path / "softmax.safetensors"
    arguments = ["--data", str(made_up), "--steps", "40", "--no-study", "-o", str(output)]
    assert main(["train", "softmax", *arguments]) == 0
    weights = load(output)
    assert "irgraph train softmax" in weights.made["command"]
    assert weights.made["settings"]["steps"] == 40
