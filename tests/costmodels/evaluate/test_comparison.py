"""Errors, their summaries, and how comparisons show themselves."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from costmodels.evaluate.comparison import Comparison, Point, Series
from costmodels.evaluate.errors import error, summarize

SERIES = Series(
    "step time",
    [Point("a", 10.0, 11.0, {"paper": -0.2}), Point("b", 20.0, 16.0, {"paper": 0.1})],
)


def test_an_error_is_signed_and_relative() -> None:
    assert error(11.0, 10.0) == pytest.approx(0.1)
    assert error(8.0, 10.0) == pytest.approx(-0.2)


def test_summaries_tell_size_bias_and_worst_apart() -> None:
    found = summarize([0.1, -0.2])
    assert found.mape == pytest.approx(0.15)
    assert found.bias == pytest.approx(-0.05)
    assert found.worst == -0.2
    # the paper's measure adds 4e-4 to each
    assert found.gmae == pytest.approx(math.sqrt(0.1004 * 0.2004))


def test_every_predictor_has_its_summary() -> None:
    found = SERIES.summaries()
    assert list(found) == ["irgraph", "paper"]
    assert found["irgraph"].mape == pytest.approx(0.15)
    assert found["paper"].bias == pytest.approx(-0.05)


def test_a_comparison_as_values_has_every_figure() -> None:
    values = Comparison("mine", [SERIES], {"device": "v100"}, ["a note"]).as_json()
    assert values["evaluation"] == "mine"
    step = values["quantities"]["step time"]
    assert [p["error_pct"] for p in step["points"]] == pytest.approx([10.0, -20.0])
    assert step["points"][0]["others_error_pct"] == {"paper": -20.0}
    assert step["summary_pct"]["irgraph"]["mape"] == pytest.approx(15.0)
    assert (values["settings"], values["notes"]) == ({"device": "v100"}, ["a note"])


def test_a_comparison_prints_points_summaries_and_notes() -> None:
    console = Console(file=io.StringIO(), width=120)
    for part in Comparison("mine", [SERIES], {"device": "v100"}, ["a note"]).render():
        console.print(part)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in ("10.00 ms", "+10.0%", "-20.0%", "MAPE", "15.0%", "bias", "-5.0%", "a note"):
        assert text in shown


def test_errors_published_without_sign_are_shown_without() -> None:
    points = [Point("here", 10.0, 9.0, {"paper": 0.2}), Point("there", 10.0, 12.0, {"paper": 0.1})]
    table = Series("step time", points, unsigned=True).table()
    cells = [list(column.cells) for column in table.columns]
    assert cells[3][:2] == ["-10.0%", "+20.0%"]
    assert cells[4][:4] == ["20.0%", "10.0%", "15.0%", ""]
