"""Plots of comparisons."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from costmodels.evaluate.comparison import Comparison, Point, Series
from costmodels.evaluate.kernels import Residuals
from costmodels.evaluate.plot import bars, draw, draw_residuals, grid
from irgraph.diagnostics import IrgraphError
from tests.costmodels.evaluate.test_comparison import SERIES


def test_bars_are_signed_errors_by_predictor() -> None:
    found = bars(SERIES)
    assert found["irgraph"] == pytest.approx([10.0, -20.0])
    assert found["paper"] == pytest.approx([-20.0, 10.0])


def test_a_comparison_is_drawn(
    tmp_path: Path, drawn: list[str], golden: Callable[[str, str], None]
) -> None:
    path = tmp_path / "errors.png"
    draw(Comparison("mine", [SERIES, SERIES]), str(path))
    golden("plots/comparison.txt", drawn[0])
    assert path.read_bytes().startswith(b"\x89PNG")


def test_errors_are_drawn_over_time_by_family_and_device(
    tmp_path: Path, drawn: list[str], golden: Callable[[str, str], None]
) -> None:
    parts = [
        Residuals("softmax", "V100", np.float32([0.1, 2.0]), np.float32([1.5, -30.0])),
        Residuals("softmax", "A100", np.float32([0.05]), np.float32([4.0])),
        Residuals("gemm", "A100", np.float32([0.5, 0.7]), np.float32([0.0, 12.0])),
    ]
    draw_residuals(parts, str(tmp_path / "r.svg"))
    golden("plots/residuals.txt", drawn[0])


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
