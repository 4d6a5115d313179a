"""``irgraph evaluate intervals``: how often 90 % intervals hold, by op, card and what was seen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from costmodels.devices.library import load_device
from costmodels.evaluate.coverage.evaluation import (
    IntervalEvaluation,
    IntervalGroup,
    evaluate_intervals,
)
from costmodels.learned.infer import Estimates, estimate
from costmodels.learned.weights import Weights, load_shipped
from irgraph.cli.main import main

ROW = IntervalGroup("gemm_units", "sweep", "B200", "group", 2220, 90.4, 7.1, True)


@pytest.mark.parametrize(
    ("rows", "held", "verdict"),
    [(50, 84.9, "narrow"), (50, 85.0, ""), (50, 95.0, ""), (50, 95.1, "wide"), (49, 20.0, "")],
)
def test_groups_of_enough_rows_are_judged(rows: int, held: float, verdict: str) -> None:
    assert replace(ROW, rows=rows, held=held).verdict == verdict


def test_groups_are_a_table_lines_and_records() -> None:
    found = IntervalEvaluation(
        [ROW, replace(ROW, held=99.0), replace(ROW, held=70.0, priced=False)]
    )
    table, ours, others = found.render()
    assert table.row_count == 3  # type: ignore[union-attr]
    assert "of 2 groups of at least 50 rows that predict answers by, 1 hold" in str(ours)
    assert "of 1 groups" in str(others) and "1 in fewer" in str(others)
    records = json.loads(json.dumps(found.as_json()))["groups"]
    assert [record["verdict"] for record in records] == ["", "wide", "narrow"]


def ask(weights: Weights, card: str, rows: float = 4096.0) -> Estimates:
    sizes = {"rows": rows, "cols": 1024.0}
    columns = {name: np.asarray([size], np.float32) for name, size in sizes.items()}
    columns["op"] = np.zeros(1, np.float32)
    device = weights.family.campaign.hardware([load_device(card)])
    return estimate(weights, columns, device)


def test_each_card_has_widths_of_its_own() -> None:
    plain = replace(load_shipped("softmax"), cards=(), octaves=(), octave=0.125)
    own = replace(plain, cards=((1.0, 2.0, 1.0, 1.0, 1.0),), octaves=((0.5, 0.25, 0.0, 0.0, 1.0),))
    v100, a100, h100 = "v100-pcie-32gb", "a100-pcie-40gb", "h200"
    assert ask(own, v100).width == pytest.approx(ask(plain, v100).width, rel=0.01)
    assert ask(own, a100).width == pytest.approx(2 * ask(plain, a100).width, rel=0.01)
    assert ask(own, h100).width > ask(plain, h100).width  # other cards: the last of each row
    wide, narrow = ask(own, v100, 2.0**24), ask(plain, v100, 2.0**24)
    assert wide.width - narrow.width == pytest.approx(0.375 * wide.beyond, rel=1e-3)


def test_without_measurements_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("IRGRAPH_DATA", raising=False)
    assert main(["evaluate", "intervals"]) == 2
    assert "set IRGRAPH_DATA" in capsys.readouterr().err


@pytest.mark.data
@pytest.mark.slow
def test_intervals_of_shapes_never_seen_hold(data_dir: Path) -> None:
    found = evaluate_intervals()
    seen = [g for g in found.groups if g.part in ("shapes", "point", "group") and g.priced]
    judged = [g for g in seen if g.rows >= 50]
    assert len(judged) > 60
    for group in judged:
        assert 75 <= group.held <= 99, group
    right = sum(not group.verdict for group in judged)
    assert right >= 0.85 * len(judged)
