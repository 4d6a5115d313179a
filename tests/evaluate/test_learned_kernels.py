"""``irgraph evaluate kernels`` and ``irgraph evaluate models``."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.evaluate.kernels import evaluate_kernels
from irgraph.evaluate.models import Work, evaluate_models, layer_range, model_work, prices
from irgraph.text.diagnostics import IrgraphError

OPS = [
    {"Name": name, "OpName": kind, "FwOps": calls, "BwOps": "[]", "InputShapes": shapes}
    for name, kind, calls, shapes in (
        ("embed", "MEM", "[['MEM', ((4, 8), (4, 8, 64))]]", "[(4, 8)]"),
        ("x_h_0_fc", "Linear", "[['Linear', (32, 64, 128)]]", "[(4, 8, 64)]"),
        ("x_h_0_drop", "misc", "[]", "[]"),
        ("add_1", "VECadd", "[['VECadd', (32, 128)]]", "[(32, 128), (32, 128)]"),
        ("norm", "VECln", "[['VECln', (32, 128)]]", "[(32, 128)]"),
    )
]


def test_one_layer_stands_for_all() -> None:
    assert layer_range(OPS) == range(1, 4)
    work = model_work(OPS, 12)
    assert [item.times for item in work] == [12, 12, 1]
    assert work[0] == Work("gemm", "linear", (1.0, 32.0, 128.0, 64.0), 12)


def test_a_small_operand_is_no_tensor_of_its_own() -> None:
    row = {**OPS[3], "InputShapes": "[(32, 128), (1, 128)]"}
    assert model_work([row], 1)[0].op == "mulu"


def test_repeats_are_paid() -> None:
    once, often = (prices(model_work(OPS, n), "V100-PCIE-32GB") for n in (1, 5))
    assert often[0] == pytest.approx(5 * once[0])


def test_evaluations_ask_for_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IRGRAPH_DATA", raising=False)
    for evaluation in (evaluate_kernels, evaluate_models):
        with pytest.raises(IrgraphError, match="no reference measurements"):
            evaluation()


@pytest.mark.data
def test_published_models_are_near(data_dir: Path) -> None:
    inference = evaluate_models().series[0]
    assert len(inference.points) == 8
    assert inference.summaries()["irgraph"].mape < 0.06


@pytest.mark.data
def test_kernels_are_scored(data_dir: Path) -> None:
    found = evaluate_kernels()
    assert len(found.render()) == 6
    scores = found.as_json()["scores_pct"]
    assert len(scores) == 4
    larger = scores["larger shapes than any in training"]
    middle = [row for row in larger if row["part"] == "8 to 64 x" and "T4" not in row["what"]]
    assert len(middle) == 6
    assert all(row["gmae"] < 12 for row in middle)
    sizes = [t for t in found.as_json()["traced_us"] if t["measured"] < 30]
    assert all(abs(t["learned"] - t["measured"]) < 11 for t in sizes)
