"""Plots of comparisons."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from irgraph.evaluate.comparison import Comparison
from irgraph.evaluate.plot import bars, draw
from irgraph.text.diagnostics import IrgraphError
from tests.evaluate.test_comparison import SERIES


def test_bars_are_signed_errors_by_predictor() -> None:
    found = bars(SERIES)
    assert found["irgraph"] == pytest.approx([10.0, -20.0])
    assert found["paper"] == pytest.approx([-20.0, 10.0])


def test_a_comparison_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "errors.png"
    draw(Comparison("mine", [SERIES, SERIES]), str(path))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(IrgraphError, match="plots need matplotlib"):
        draw(Comparison("mine", [SERIES]), "errors.png")
