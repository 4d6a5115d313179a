"""The answer of a prediction: its digits, and the kind of work that bounds the step."""

from __future__ import annotations

from typing import Any

import pytest

from costmodels.evaluate.dlrm_v100 import dlrm
from irgraph.predict.answer import answer, bound, flop_text
from irgraph.predict.prediction import predict
from irgraph.predict.tables import TABLES, brief_tables, prediction_tables
from irgraph.report.console import PlainConsole, rounded_times
from irgraph.text import IrgraphError

WIDTH, MAX_LINES = 80, 25


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ((26_497.0, 21_200.0, 34_100.0), "26 ms (21 to 34)"),
        ((26_497.0, 26_300.0, 26_700.0), "26.50 ms (26.30 to 26.70)"),
        ((942.4, 249.8, 2606.0), "940 us (250 to 2,610)"),
        ((3.21, 3.0, 3.6), "3.2 us (3.0 to 3.6)"),
        ((162_100_000.0, 150e6, 180e6), "162 s (150 to 180)"),
        ((5.0, 5.0, 5.0), "5.0 us (5.0 to 5.0)"),
        ((0.0, 0.0, 0.0), "0.0 us (0.0 to 0.0)"),
    ],
)
def test_digits_follow_the_interval(times: tuple[float, float, float], text: str) -> None:
    assert rounded_times(*times) == text


@pytest.mark.parametrize(
    ("path", "start"),
    [
        ({"T1": 30.0, "T4": 40.0, "kernel gemm": 30.0}, "Host-bound: host 70% of"),
        ({"loader": 60.0, "kernel gemm": 40.0}, "Input-bound: data loader 60% of"),
        ({"kernel collective": 55.0, "kernel gemm": 45.0}, "Communication-bound: collectives 55%"),
        (
            {"kernel gemm": 60.0, "kernel norm": 30.0, "gap": 10.0},
            "Device-bound: kernels 90%",
        ),
        ({"gap": 40.0, "sync": 20.0, "T1": 40.0}, "Latency-bound: latencies and waits 60%"),
        ({"T1": 40.0, "kernel gemm": 45.0, "gap": 15.0}, "No single bound: kernels 45%, host 40%."),
    ],
)
def test_most_of_the_path_bounds_the_step(path: dict[str, float], start: str) -> None:
    assert bound({"critical_path_us": path, "step_time_us": 100.0}).startswith(start)


def test_a_step_of_kernels_names_the_largest_families() -> None:
    path = {"kernel gemm": 60.0, "gap": 15.0, "kernel norm": 14.0, "kernel loss": 11.0}
    text = bound({"critical_path_us": path, "step_time_us": 100.0})
    assert text.endswith("of the critical path, gemm kernels 60% and norm kernels 14%.")


@pytest.mark.parametrize(
    ("flop", "text"),
    [(0.5, "0.500 FLOP"), (1020, "1,020 FLOP"), (8.49e8, "849 MFLOP"), (1.78e12, "1.78 TFLOP")],
)
def test_operations_have_the_unit_that_suits(flop: float, text: str) -> None:
    assert flop_text(flop) == text


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    return predict(dlrm("DLRM_default", 2048), "h100").summary()


def test_the_answer_comes_first_and_fits_a_small_terminal(summary: dict[str, Any]) -> None:
    console = PlainConsole(width=WIDTH, record=True, quiet=True)
    lines = list(answer(summary, measured=6000.0))
    assert lines[0].startswith("H100-80GB-HBM3: ") and lines[1].startswith("Measured: 6.000 ms;")
    assert " samples a second, " in lines[2] and "memory " in lines[2]
    for part in (*lines, *brief_tables(summary)):
        console.print(part)
    text = console.export_text()
    assert len(text.splitlines()) <= MAX_LINES and "…" not in text


def test_each_table_is_shown_by_its_name(summary: dict[str, Any]) -> None:
    for name in TABLES:
        assert len(prediction_tables(summary, names=[name])) == 1
    assert len(prediction_tables(summary)) == len(TABLES)
    with pytest.raises(IrgraphError, match="no table 'figure'"):
        prediction_tables(summary, names=["figure"])


def test_a_step_that_does_not_fit_and_ops_without_a_model_are_named(
    summary: dict[str, Any],
) -> None:
    memory = {**summary["memory"], "fits": False}
    unknown = {"ops": {"my.op": 3}, "share_of_bytes": 0.1}
    text = "\n".join(answer({**summary, "memory": memory, "unknown": unknown}))
    assert "which DOES NOT FIT" in text
    assert "No model knows 3 ops: the time is a lower bound." in text


def test_throughput_is_that_of_all_steps(summary: dict[str, Any]) -> None:
    """One step in four takes three times as long."""
    step = summary["step_time_us"]
    rarer = [{"share": "1/4", "step_time_us": 3 * step}]
    lines = list(answer({**summary, "rarer_steps": rarer, "mean_step_time_us": 1.5 * step}))
    assert lines[1].startswith("1 in 4 steps: ") and lines[2].startswith("Mean of all steps: ")
    rate = float(lines[3].partition("): ")[2].partition(" samples")[0].replace(",", ""))
    assert rate == pytest.approx(2048 / (1.5 * step) * 1e6, rel=0.01)
