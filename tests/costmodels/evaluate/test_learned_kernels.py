"""``irgraph evaluate kernels`` and ``irgraph evaluate models``."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from rich.console import Console

from costmodels.evaluate.boosting import boosted_scores
from costmodels.evaluate.kernels import ScoreTable, evaluate_kernels
from costmodels.evaluate.models import (
    DEVICES,
    Work,
    evaluate_models,
    layer_range,
    model_work,
    prices,
)
from costmodels.learnable.hardware import Hardware
from costmodels.learnable.launch import HostLaunch
from costmodels.learnable.measurements import Measurements
from costmodels.learned.paper_net import shipped_paper
from costmodels.learned.weights import load_shipped
from costmodels.training.recipe import devices_of
from costmodels.training.score import score
from irgraph.cli.main import main
from irgraph.diagnostics import IrgraphError

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


UNSEEN = {
    f"{op} {device}": most
    for op in ("linear", "bmm")
    for device, most in (("V100-PCIE-32GB", 12), ("A100-PCIE-40GB", 12), ("P100-PCIE-16GB", 18))
}
"""Greatest GMAE in percent on a device that training has not seen."""


def test_one_layer_stands_for_all() -> None:
    assert layer_range(OPS) == range(1, 4)
    work = model_work(OPS, 12)
    assert [item.times for item in work] == [12, 12, 1]
    assert work[0] == Work("gemm", "linear", (1.0, 32.0, 128.0, 64.0), 12)


def test_ops_of_opt_are_those_of_its_layers() -> None:
    named = [{**row, "Name": row["Name"].replace("_h_0_", "_decoder_layers_0_")} for row in OPS]
    assert model_work(named, 12) == model_work(OPS, 12)


def test_a_model_without_named_layers_is_refused() -> None:
    with pytest.raises(IrgraphError, match="no op of a first layer among 5 ops of 12 layers"):
        model_work([{**row, "Name": "fc"} for row in OPS], 12)


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
    found = evaluate_models()
    inference = found.series[0]
    assert len(inference.points) == 8
    assert inference.summaries()["irgraph"].mape < 0.06
    volta, ampere = (n for n in found.notes if n.partition(":")[0] in DEVICES.values())
    assert volta == (
        "V100-PCIE-32GB: the published times of ops alone sum to +1% to +10% against those of "
        "whole models."
    )
    assert "sum to +17% to +51% against" in ampere
    assert "in 3 of 4 models matrix products alone take longer than the model" in ampere


@pytest.mark.data
@pytest.mark.slow
def test_kernels_are_scored(data_dir: Path) -> None:
    found = evaluate_kernels()
    assert len(found.render()) == 7
    scores = found.as_json()["scores_pct"]
    assert len(scores) == 5
    unseen = scores["a device left out of training, by its datasheet alone"]
    assert {row["what"] for row in unseen} == set(UNSEEN)
    for row in unseen:
        if row["part"] == "all":
            assert row["gmae"] <= UNSEEN[row["what"]], row["what"]
    larger = scores["larger shapes than any in training"]
    middle = [row for row in larger if row["part"] == "8 to 64 x" and "T4" not in row["what"]]
    assert len(middle) == 6
    assert all(row["gmae"] < 12 for row in middle)
    sizes = [t for t in found.as_json()["traced_us"] if t["measured"] < 30]
    assert all(abs(t["learned"] - t["measured"]) < 11 for t in sizes)


@pytest.mark.data
def test_the_papers_way_stands_beside_ours(data_dir: Path) -> None:
    rows = evaluate_kernels().as_json()["scores_pct"][
        "the paper's way, one network for one op on one card"
    ]
    paper, ours = rows
    assert (paper["what"], paper["part"]) == (ours["what"], "paper's way")
    assert paper["count"] == ours["count"]
    (net,) = shipped_paper()
    assert paper["gmae"] == pytest.approx(net.made["held_out_pct"]["gmae"], abs=0.1)


@pytest.mark.data
@pytest.mark.slow
def test_residuals_are_drawn_over_size(
    data_dir: Path, tmp_path: Path, drawn: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "kernels", "--plot", str(tmp_path / "r.png"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["scores_pct"]["held-out shapes, launch included"]
    held_out = sum(row["count"] for row in rows if row["part"] == "all")
    lines = [line for line in drawn[0].splitlines() if re.match(r"line [A-Z]", line)]
    assert sum(len(line.split(" | ")) for line in lines) == held_out


def test_the_baseline_is_one_of_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "models", "--baseline"]) == 2
    assert "beside kernels and modern only" in capsys.readouterr().err


def test_the_baseline_asks_for_its_package(
    monkeypatch: pytest.MonkeyPatch, rows: Measurements, device: Hardware
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(IrgraphError, match="the baseline needs scikit-learn"):
        boosted_scores(load_shipped("softmax"), rows, device)


@pytest.mark.long
def test_boosting_is_scored_on_held_out_rows(rows: Measurements, device: Hardware) -> None:
    weights = replace(load_shipped("softmax"), launches={("softmax", "T4"): HostLaunch(20.0, 10.0)})
    scores = boosted_scores(weights, rows, device)
    assert scores["softmax T4", "all"].count == int(rows.dev.sum())
    assert scores["softmax T4", "all"].gmae < 0.05


@pytest.fixture
def rows() -> Measurements:
    """Return kernels that take 20 us of launch and move 200 GB/s."""
    rng = np.random.default_rng(0)
    sizes = {name: rng.integers(64, 4096, 600).astype(np.float32) for name in ("rows", "cols")}
    times = 20 + 8 * sizes["rows"] * sizes["cols"] / 200e3
    sizes["op"] = np.zeros(600, np.float32)
    device, dev = np.zeros(600, np.intp), np.arange(600) % 5 == 0
    kernels = np.full(600, "")
    place = np.linspace(0, 1, 600, dtype=np.float32)
    return Measurements("softmax", ("softmax",), sizes, ("T4",), device, times, dev, kernels, place)


@pytest.fixture
def device(rows: Measurements) -> Hardware:
    """Return the device of each row."""
    return devices_of(rows)


def test_what_has_no_interval_shows_a_dash() -> None:
    errors = np.asarray([0.1, -0.2], np.float32)
    table = ScoreTable("t", [("linear", "paper's way", score(errors, None))])
    out = io.StringIO()
    Console(file=out, width=160).print(table.render())
    row = next(line for line in out.getvalue().splitlines() if "paper's way" in line)
    assert row.split("│")[-2].strip() == "-"
    assert table.as_json()[0]["coverage"] is None
