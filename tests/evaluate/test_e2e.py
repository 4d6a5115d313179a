"""Whole steps beside measured ones: shared and own overheads, kernels alone, idle, replays."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.evaluate.comparison import Comparison, Series
from irgraph.evaluate.e2e import evaluate_e2e, own_overheads
from irgraph.text.diagnostics import IrgraphError


@pytest.fixture(scope="module")
def series(data_dir: Path) -> dict[str, Series]:
    return {s.quantity.split(",")[-1].strip(): s for s in _comparison().series}


def _comparison() -> Comparison:
    return evaluate_e2e()


def test_without_measurements_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IRGRAPH_DATA", raising=False)
    with pytest.raises(IrgraphError, match="no reference measurements to compare with"):
        evaluate_e2e()


@pytest.mark.data
def test_overheads_of_the_workload_alone_predict_it_better(series: dict[str, Series]) -> None:
    shared = series["overheads shared"].summaries()["irgraph"]
    alone = series["overheads of the workload alone"].summaries()["irgraph"]
    assert alone.mape < shared.mape


@pytest.mark.data
def test_kernels_alone_fall_short(series: dict[str, Series]) -> None:
    assert all(point.error < 0.0 for point in series["if kernels were all"].points)


@pytest.mark.data
def test_step_is_active_and_idle(series: dict[str, Series]) -> None:
    step = series["overheads shared"].points
    idle = series["GPU idle time (step less the derived active time)"].points
    active = series["if kernels were all"].points
    for whole, part, rest in zip(step, idle, active, strict=True):
        assert part.predicted + rest.predicted == pytest.approx(whole.predicted)


@pytest.mark.data
def test_replays_explain_their_steps(series: dict[str, Series]) -> None:
    points = series["mean overheads of each"].points
    assert len(points) == 15
    assert max(abs(point.error) for point in points) < 0.08


@pytest.mark.data
def test_own_overheads_are_of_one_workload(data_dir: Path) -> None:
    table = own_overheads(data_dir, "DLRM_MLPerf", "512")
    assert table.file.t1.mean == pytest.approx(7.1)
    assert table.file.ops["autograd.AddmmBackward0"].t2 is not None
