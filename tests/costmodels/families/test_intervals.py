"""How wide intervals are: as the traces say where they say something, and as documented."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from costmodels.evaluate.traced_residuals import TRACE, measured_ops, predictions
from costmodels.formulas import intervals
from tests.costmodels.families.worked import SPREAD

DOCS = Path(__file__).parents[3] / "docs" / "costs.md"


def test_the_documentation_holds_every_share() -> None:
    text = DOCS.read_text(encoding="utf-8").partition("| rests on | share |")[2]
    listed = re.findall(r"\| (\d+) % \|$", text.partition("\n\n")[0], re.MULTILINE)
    shares = [value for name, value in vars(intervals).items() if name.isupper()]
    assert sorted(shares) == [int(share) / 100 for share in listed]


@pytest.mark.data
@pytest.mark.parametrize(
    ("labels", "share"),
    [(("aten::relu",), intervals.CLOSE), (("aten::linear",), intervals.FAIR)],
)
def test_nine_of_ten_traced_kernels_lie_inside(
    labels: tuple[str, ...], share: float, data_dir: Path
) -> None:
    off = []
    for (_, model), traced in measured_ops(data_dir / TRACE).items():
        predicted = predictions(model, "corrected", "torch-1.10-cuda-11.3", "v100@1297", None)
        for label in labels:
            times = [time for name, time in traced if name == label]
            for time, (expected, _) in zip(times, predicted[label], strict=True):
                kernels = 2 if label == "aten::linear" else 1  # a bias is copied first
                off.append((abs(time - expected) - kernels * SPREAD) / expected)
    assert np.quantile(off, 0.9) == pytest.approx(share, abs=0.035)
