"""Plots of comparisons."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from costmodels.evaluate.comparison import Comparison, Point, Series
from costmodels.evaluate.plot import bars, draw, grid
from irgraph.diagnostics import IrgraphError
from tests.costmodels.evaluate.test_comparison import SERIES


def test_bars_are_signed_errors_by_predictor() -> None:
    found = bars(SERIES)
    assert found["irgraph"] == pytest.approx([10.0, -20.0])
    assert found["paper"] == pytest.approx([-20.0, 10.0])


def test_a_comparison_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "errors.png"
    draw(Comparison("mine", [SERIES, SERIES]), str(path))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_many_panels_stand_in_a_grid() -> None:
    import matplotlib as mpl
    import matplotlib.figure

    assert matplotlib.figure
    figure, panels = grid(mpl, 11)
    assert len(panels) == 11
    wide, high = figure.get_size_inches()
    assert 1.2 < wide / high < 2.0


def test_names_that_do_not_fit_are_turned(tmp_path: Path) -> None:
    import matplotlib as mpl

    points = [Point(f"dlrm_8xV100 kineto_rank{n}", 1.0, 1.1) for n in range(16)]
    with mpl.rc_context({"svg.fonttype": "none"}):
        draw(Comparison("mine", [Series("replays", points)]), str(tmp_path / "e.svg"))
    text = (tmp_path / "e.svg").read_text()
    assert "dlrm_8xV100 rank15" in text and "rotate(-35" in text


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(IrgraphError, match="plots need matplotlib"):
        draw(Comparison("mine", [SERIES]), "errors.png")
