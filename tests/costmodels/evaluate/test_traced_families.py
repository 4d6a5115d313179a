"""``irgraph evaluate traced``: errors by family beside the paper's heuristics."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.evaluate.traced import embedding_samples, evaluate_traced, sum_over_traces
from costmodels.evaluate.traced_residuals import Residual


def test_groups_are_summed_over_traces_with_the_total_last() -> None:
    rows = [
        Residual("a", "relu", 2, 10.0, 12.0, 2.0, 2),
        Residual("a", "total", 2, 10.0, 12.0, 2.0, 2),
        Residual("b", "relu", 1, 5.0, 4.0, 1.0, 0),
        Residual("b", "concat", 1, 50.0, 50.0, 0.0, 1),
    ]
    found = sum_over_traces(rows)
    assert [row.group for row in found] == ["concat", "relu", "total"]
    assert (found[1].measured, found[1].predicted, found[1].absolute) == (15.0, 16.0, 3.0)
    assert found[1].inside == 2 and found[1].error == pytest.approx(1 / 15)


@pytest.mark.data
def test_our_formulas_are_closer_to_the_traces_than_the_papers(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRGRAPH_DATA", str(data_dir))
    found = evaluate_traced()
    ours, theirs = (
        {row.group: row.absolute / row.measured for row in found.rows[name]}
        for name in ("formulas", "paper")
    )
    assert ours["total"] < 0.06 < 0.15 < theirs["total"]
    assert all(ours[group] <= theirs[group] + 0.01 for group in ours)
    text = found.as_json()
    assert set(text["families"]) == {"formulas", "learned", "paper"}
    assert len(found.render()) == 4
    steps = {(row.trace, row.group): row for row in found.recorded}
    resnet = "ResNet-18, RTX 2080 Ti"
    assert abs(steps[resnet, "norm"].error) < 0.2
    assert abs(steps[resnet, "elementwise"].error) < 0.05
    assert steps[resnet, "norm"].inside == steps[resnet, "norm"].ops


@pytest.mark.data
def test_predicted_dram_bytes_of_lookups_lie_near_the_counted_ones(data_dir: Path) -> None:
    samples = embedding_samples(data_dir / "paper/kernel_microbench_samples_v100_legacy.csv")
    assert len(samples) == 20
    for sample in samples:
        assert sample.dram_predicted == pytest.approx(sample.dram, rel=0.25), sample
