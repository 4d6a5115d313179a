"""``irgraph evaluate modern``: models of today's kernels on rows and cards that were held out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from costmodels.devices.library import load_device
from costmodels.evaluate.modern import (
    LEFT_OUT,
    Cell,
    ModernEvaluation,
    evaluate_modern,
    is_priced,
)
from costmodels.families import learned_families
from costmodels.learned.infer import estimate
from costmodels.learned.predictors import predictors
from costmodels.learned.weights import load_shipped
from irgraph.cli.main import main
from irgraph.diagnostics import IrgraphError

H100, A100, B200 = "H100-80GB-HBM3", "A100-SXM4-80GB", "B200"
LAYERS = (H100, A100, "A40")
MOST = {
    **{("gemm_units", "sweep", card): 5.0 for card in (H100, "H200", A100, B200)},
    **{("gemm_units", "sweep_f8", card): 6.0 for card in (H100, "H200", B200)},
    **{("gemm_units", "layer", card): 7.0 for card in LAYERS},
    **{("attention", "causal", card): 8.0 for card in (H100, "H200", B200)},
    **{("attention", "full", card): 8.0 for card in (H100, "H200", B200)},
    **{("attention", "full_vllm", card): 8.0 for card in (H100, "H200", B200)},
    **{
        ("transformer", op, card): 10.0
        for op in ("add", "gelu", "norm", "embedding")
        for card in LAYERS
    },
}
"""Greatest mean absolute error in percent."""
FEWER = {("transformer", "embedding", H100): 83}
"""Shares of intervals that hold where they are fewer: of 90 lookups whose sizes are few."""
GMAE = 3.0
"""Greatest geometric mean of products in bf16."""


@pytest.mark.parametrize(("family", "op", "card"), MOST)
def test_held_out_errors_are_small_enough(family: str, op: str, card: str) -> None:
    found = load_shipped(family).made["held_out_pct"][f"{op} {card}"]["all"]
    assert found["mape"] <= MOST[family, op, card]
    assert op != "sweep" or found["gmae"] <= GMAE
    assert found["coverage"] >= FEWER.get((family, op, card), 84)


@pytest.mark.parametrize(
    ("family", "op", "card", "answers"),
    [
        ("gemm_units", "sweep", H100, True),
        ("gemm_units", "layer", H100, True),
        ("gemm_units", "xla", H100, False),
        ("gemm_units", "xla_tf32", H100, True),
        ("gemm_units", "volta_nt", "V100-SXM2-16GB", True),
        ("attention", "causal", B200, True),
        ("attention", "paged", B200, False),
        ("attention", "causal", H100, False),
        ("attention", "full", "GB200", False),
        ("transformer", "gelu", A100, True),
        ("transformer", "norm", H100, False),
        ("transformer", "embedding", A100, False),
        ("transformer", "rope", A100, False),
    ],
)
def test_what_predict_answers_by_is_said(family: str, op: str, card: str, answers: bool) -> None:
    assert is_priced(learned_families()[family], op, card) == answers


def test_predict_and_evaluate_give_the_same_time() -> None:
    weights, sheet = load_shipped("gemm_units"), load_device("b200")
    sizes = {"batch": 1.0, "m": 513.0, "n": 4096.0, "k": 1536.0}
    answer = predictors(sheet, "torch-2")["gemm_units"]({**sizes, "dtype": "bf16", "layout": "tn"})
    columns = {name: np.asarray([size], np.float32) for name, size in sizes.items()}
    columns["op"] = np.asarray([weights.family.ops.index("sweep")], np.float32)
    found = estimate(weights, columns, weights.family.campaign.hardware([sheet]))
    assert answer and (answer.time, answer.outside) == (found.time[0], found.outside[0])
    assert answer.spread == pytest.approx(float(found.spread[0]), rel=1e-5)


@pytest.mark.data
@pytest.mark.slow
def test_each_part_of_each_card_is_scored(data_dir: Path) -> None:
    found = evaluate_modern()
    assert len(found.render()) == 3
    cells = {(c.family, c.op, c.card, c.part): c.figures for c in found.cells}
    for (family, op, card), most in MOST.items():
        for part in ("point", "group"):
            figures = cells.get((family, op, card, part))
            assert figures is None or figures["MAPE"] <= most, (op, card, part)
    for card, most in ((H100, 12), (B200, 15), (A100, 20)):
        assert cells["gemm_units", "sweep", card, LEFT_OUT]["MAPE"] <= most


def test_without_measurements_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("IRGRAPH_DATA", raising=False)
    with pytest.raises(IrgraphError, match="no reference measurements"):
        evaluate_modern()
    assert main(["evaluate", "modern"]) == 2
    assert "set IRGRAPH_DATA" in capsys.readouterr().err


def test_a_cell_is_a_row_and_a_record() -> None:
    figures = dict.fromkeys(("MAPE", "GMAE", "bias", "worst", "in interval", "half width"), 1.5)
    found = ModernEvaluation([Cell("gemm_units", "sweep", H100, "group", 7, figures, (2.0, 1.0))])
    (table,) = found.render()
    assert table.row_count == 1  # type: ignore[union-attr]
    (record,) = json.loads(json.dumps(found.as_json()))["held_out_pct"]
    assert (record["MAPE"], record["in_interval"], record["boosting_GMAE"]) == (1.5, 1.5, 1.0)
