"""Predicted kernels beside every kernel of the traced V100 steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.evaluate.dlrm_2021 import reference_ops
from costmodels.evaluate.traced_residuals import residuals
from irgraph.diagnostics import IrgraphError

LIMITS = {
    "linear": 0.12, "linear backward": 0.10, "bmm": 0.12, "bmm backward": 0.25,
    "embedding": 0.15, "embedding backward": 0.20, "copy": 0.10, "concat": 0.10,
    "index": 0.25, "index backward": 0.15,
}  # fmt: skip
"""Largest error of a group's sum, as a share."""


@pytest.mark.data
def test_kernel_times_stay_within_bounds_of_the_traces(data_dir: Path) -> None:
    for row in residuals(data_dir):
        if row.group == "total":
            assert abs(row.error) < 0.05, row
            assert row.absolute / row.measured < 0.08, row
            assert row.inside >= 0.85 * row.ops, row
        elif row.group in LIMITS:
            assert abs(row.error) < LIMITS[row.group], row


@pytest.mark.data
def test_the_papers_formulas_miss_what_their_authors_left_out(data_dir: Path) -> None:
    paper = {(r.trace, r.group): r for r in residuals(data_dir, mode="paper")}
    default = "2021-05-04 DLRM_default"
    assert paper[default, "embedding"].error == pytest.approx(0.014, abs=0.01)
    assert paper[default, "embedding backward"].error == pytest.approx(-0.18, abs=0.01)
    assert paper[default, "copy"].error > 0.4
    assert paper["2021-05-14 DLRM_MLPerf", "embedding"].error > 0.3


def test_traces_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match=r"no traced kernels at .*kernel_trace_v100"):
        residuals(tmp_path)


def test_the_reference_step_lists_ops_in_the_order_of_the_trace() -> None:
    labels = [label for label, _ in reference_ops("DLRM_default", 2048)]
    assert labels[:5] == ["aten::to", "aten::to", "aten::to", "aten::linear", "aten::relu"]
    assert labels.index("LookupFunction") < labels.index("aten::bmm") < labels.index("aten::index")
    assert labels[-1] == "Optimizer.step#SGD.step"
    assert labels.count("aten::linear") == labels.count("AddmmBackward") == 6
