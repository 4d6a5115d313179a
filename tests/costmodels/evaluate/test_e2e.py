"""Whole steps beside measured ones: shared and own overheads, kernels alone, idle, replays."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.evaluate.comparison import Comparison, Series
from costmodels.evaluate.e2e import evaluate_e2e
from costmodels.evaluate.own_overheads import own_overheads, own_overheads_2022
from irgraph.diagnostics import IrgraphError

HOW = ("shared overheads", "own overheads", "kernels only")


@pytest.fixture(scope="module")
def series(data_dir: Path) -> dict[str, Series]:
    return {s.quantity: s for s in _comparison().series}


def _comparison() -> Comparison:
    return evaluate_e2e()


def test_without_measurements_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IRGRAPH_DATA", raising=False)
    with pytest.raises(IrgraphError, match="no reference measurements to compare with"):
        evaluate_e2e()


@pytest.mark.data
@pytest.mark.slow
def test_overheads_of_the_workload_alone_predict_it_better(series: dict[str, Series]) -> None:
    shared = series["step time, overheads shared"].summaries()["irgraph"]
    alone = series["step time, overheads of the workload alone"].summaries()["irgraph"]
    assert alone.mape < shared.mape


@pytest.mark.data
@pytest.mark.slow
def test_kernels_alone_fall_short(series: dict[str, Series]) -> None:
    assert all(point.error < 0.0 for point in series["step time, kernels only"].points)


@pytest.mark.data
@pytest.mark.slow
def test_step_is_active_and_idle(series: dict[str, Series]) -> None:
    step = series["step time, overheads shared"].points
    idle = series["GPU idle time (step less the derived active time)"].points
    active = series["step time, kernels only"].points
    for whole, part, rest in zip(step, idle, active, strict=True):
        assert part.predicted + rest.predicted == pytest.approx(whole.predicted)


@pytest.mark.data
@pytest.mark.slow
def test_replays_explain_their_steps(series: dict[str, Series]) -> None:
    points = series["replays of traces, mean overheads of each"].points
    assert len(points) == 17
    assert max(abs(point.error) for point in points) < 0.08


@pytest.mark.data
@pytest.mark.slow
def test_ranks_are_replayed_with_the_overheads_of_the_others(series: dict[str, Series]) -> None:
    points = series["replays of traces, mean overheads of its fellows alone"].points
    ranks = [abs(point.error) for point in points if point.workload.startswith("dlrm_8xV100")]
    assert (len(points), len(ranks)) == (14, 8)
    # another's overheads are not one's own, and close to them
    assert 0.005 < max(ranks) < 0.05


@pytest.mark.data
def test_own_overheads_are_of_one_workload(data_dir: Path) -> None:
    table = own_overheads(data_dir, "DLRM_MLPerf", "512")
    assert table.file.t1.mean == pytest.approx(7.1)
    assert table.file.ops["autograd.AddmmBackward0"].t2 is not None


@pytest.mark.data
@pytest.mark.slow
def test_classifiers_are_predicted_three_ways(series: dict[str, Series]) -> None:
    found = [series[f"image classifiers, step time, {how}"] for how in HOW]
    shared, own, kernels = ([point.predicted for point in one.points] for one in found)
    assert len(shared) == 6
    assert all(a < b for a, b in zip(kernels, shared, strict=True))
    assert list(found[0].points[0].others) == ["paper", "Habitat", "MLPredict"]
    # their operations cost the host more than a mean over operations of DLRM
    assert all(a < b for a, b in zip(shared, own, strict=True))


@pytest.mark.data
@pytest.mark.slow
def test_operators_of_a_traced_classifier_take_what_is_predicted(series: dict[str, Series]) -> None:
    traced = series["device time by operation, ResNet-50 at B = 32 as traced on a V100"]
    assert traced.summaries()["irgraph"].mape < 0.15
    assert sum(point.measured for point in traced.points) == pytest.approx(90.2, abs=0.1)


@pytest.mark.data
def test_own_overheads_of_classifiers_are_scaled_to_the_level_of_the_shared_ones(
    data_dir: Path,
) -> None:
    table = own_overheads_2022(data_dir, "resnet50", "32")
    convolution = table.file.ops["aten.conv2d"].t2
    assert convolution is not None
    assert convolution.mean == pytest.approx(127.657 * 0.831, rel=1e-3)
    assert table.file.t1.mean == pytest.approx(13.915 * 0.825, rel=1e-3)
    assert "autograd.NativeBatchNormBackward0" in table.file.ops
