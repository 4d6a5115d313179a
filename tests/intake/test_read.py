"""Files of each kind become records; nothing private is in them unless it was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from irgraph.database.entry import Provenance, RecordEntry, canonical
from irgraph.diagnostics import IrgraphError
from irgraph.intake.read import entries
from tests.intake.files import CALL, HEAD, HOST, ROWS, SECRET, SOFTMAX, write

KINDS = ("host", "measurements", "prediction", "recording")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write(tmp_path_factory.mktemp("files"))


def everything(found: list[RecordEntry]) -> str:
    """Return all that would be stored of entries, as a text."""
    parts = [(one.content, one.rows, one.provenance) for one in found]
    return " ".join(canonical([content, rows, repr(by)]) for content, rows, by in parts).lower()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_private_is_taken_unless_it_was_asked_for(
    kind: str, files: dict[str, Path]
) -> None:
    assert SECRET not in everything(entries(str(files[kind])))
    assert SECRET in everything(entries(str(files[kind]), private=True))


def test_a_host_table_keeps_its_figures(files: dict[str, Path]) -> None:
    (entry,) = entries(str(files["host"]))
    ops = entry.content["ops"]
    assert ops["aten.mm"]["T2"] == {"mean": 4.0, "std": 1.0, "count": 3, "quantiles": {"p50": 4.0}}
    assert ops["aten.mm"]["launches"] == ("kernel",) and len(ops) == len(HOST["ops"])
    assert list(ops["aten.mm"]["shapes"]) == ["f32[8,8] f32[8,8]"]
    means = {(row["type"], row["operation"]): row["mean_us"] for row in entry.rows}
    assert means["T1", ""] == means["T2", "aten.mm"] == 4.0
    assert "the names of 2 operations that are not torch's" in entry.omissions
    figures = ("recording_std", "no_graph_ratio", "profiled")
    assert [entry.content[name] for name in figures] == [HOST[name] for name in figures]


def test_measurements_keep_what_is_public(files: dict[str, Path]) -> None:
    (entry,) = entries(str(files["measurements"]))
    assert [row["key"] for row in entry.rows] == [SOFTMAX["key"], CALL["key"]]
    assert entry.rows[0]["kernel_us"] == 7.5 and entry.rows[1]["op"] == "aten.mm"
    assert entry.provenance == Provenance(
        card=str(HEAD["name"]),
        driver="570.86.15",
        software="torch 2.8.0+cu128, CUDA 12.8, Python 3.11.7",
    )
    assert entry.omissions == (
        "1 case that has no time",
        f"{len(ROWS) - 3} cases with names that are not torch's or irgraph's",
    )
    (whole,) = entries(str(files["measurements"]), private=True)
    assert len(whole.rows) == len(ROWS) - 1


def test_what_the_user_says_goes_before_the_file(files: dict[str, Path]) -> None:
    said = Provenance("me", "A100", "1.2", "torch 9", 1410.0, "our cluster")
    for kind in KINDS:
        (entry,) = entries(str(files[kind]), said)
        assert entry.provenance == said


def test_steps_hold_predicted_beside_measured(files: dict[str, Path]) -> None:
    (row,) = entries(str(files["prediction"]))[0].rows
    figures = [row[name] for name in ("predicted", "low", "high", "measured", "batch")]
    assert figures == [2000.0, 1800.0, 2200.0, 2500.0, 64]
    assert row["error_pct"] == pytest.approx(-20.0)
    (row,) = entries(str(files["recording"]))[0].rows
    assert (row["measured"], row["profiled"], row["device"]) == (1500.0, 1600.0, "cuda:0")


def test_an_evaluation_has_a_row_for_each_point(tmp_path: Path) -> None:
    points = [
        {"workload": "DLRM, B = 512", "measured_ms": 2.0, "predicted_ms": 2.5},
        {"workload": "DLRM, seq 3", "measured_ms": 4.0, "predicted_ms": 3.0},
    ]
    gains = [{"workload": "x", "measured_x": 1.5, "predicted_x": 1.2}]
    quantities = {"step time": {"points": points}, "gains": {"points": gains}}
    found = written(tmp_path, {"evaluation": "dlrm-v100", "quantities": quantities})
    rows = found.rows
    assert [(row["measured"], row["predicted"], row["unit"]) for row in rows] == [
        (2000.0, 2500.0, "us"),
        (4000.0, 3000.0, "us"),
        (1.5, 1.2, "x"),
    ]
    assert [row["batch"] for row in rows] == [512, None, None]
    assert [row["error_pct"] for row in rows] == pytest.approx([25.0, -25.0, -20.0])


def written(folder: Path, value: Any) -> RecordEntry:
    """Return the entry of a file with this JSON."""
    path = folder / "value.json"
    path.write_text(json.dumps(value))
    (entry,) = entries(str(path))
    return entry


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"evaluation": "kernels"}, "'kernels' puts no predictions beside measured steps"),
        ({"evaluation": "falcon"}, "'falcon' is not one that ships"),
        ({"evaluation": 3}, "not what irgraph writes"),
        (
            {"evaluation": "e2e", "quantities": {"a": {"points": [{"measured_ms": 1}]}}},
            "a point of 'a' lacks a figure",
        ),
        ({"format": 1, "T1": {"mean": -1}}, "host table"),
        ({"device": "cpu", "seed": 1}, "not a file of measurements"),
        ({"step_time_us": 1, "step_time_interval_us": "x"}, "not what irgraph writes"),
        ({"traceEvents": []}, "nothing that a database takes"),
        ([1, 2], "nothing that a database takes"),
    ],
)
def test_other_files_are_refused_with_a_reason(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(IrgraphError, match=message) as caught:
        written(tmp_path, value)
    assert "value.json" in str(caught.value)


def test_a_folder_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match=r"the folder holds no step\.json"):
        entries(str(tmp_path))
