"""``irgraph db``, as a user calls it, and ``db:NAME`` where predictions take names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from irgraph.cli.main import main
from irgraph.database.access import VARIABLE
from tests.intake.files import HOST, write

MODEL = """model "m" { format = 1 }

device @gpu0 "v100"
input %x : f32[8, 8] in $b1

%y = aten.mm(%x, %x) : f32[8, 8] in $b2
"""
SHEETS = Path(__file__).parents[2] / "costmodels" / "devices"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*words: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main([str(word) for word in words])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "team.db"))
    (tmp_path / "model.ir").write_text(MODEL)
    return {**write(tmp_path), "model": tmp_path / "model.ir"}


def test_a_table_is_added_listed_and_predicted_with(run: Run, files: dict[str, Path]) -> None:
    assert run("db", "hosts")[0] == 2
    assert "made with schema" in run("db", "init")[2]
    assert "hosts ours: new, 10 rows added" in run("db", "add", files["host"], "--name", "ours")[2]
    assert "known" in run("db", "add", files["host"])[2]
    code, out, _ = run("db", "hosts", "--where", "operation=aten.mm", "--json")
    assert code == 0 and {row["name"] for row in json.loads(out)} == {"ours"}
    stored = json.loads(run("predict", files["model"], "--host", "db:ours", "--json")[1])
    fast = json.loads(run("predict", files["model"], "--host", "db:ours@2x", "--json")[1])
    file = json.loads(run("predict", files["model"], "--host", files["host"], "--json")[1])
    assert stored["step_time_us"] == file["step_time_us"] > fast["step_time_us"]
    assert stored["host"].startswith("db:ours (") and len(HOST["ops"]) == 3


def test_calls_of_a_record_price_as_those_of_its_file(run: Run, files: dict[str, Path]) -> None:
    run("db", "init")
    run("db", "add", files["measurements"], "--name", "calls")
    sheet = json.loads((SHEETS / "a100-sxm4-40gb.json").read_text())
    mine = files["model"].with_name("mine.json")
    mine.write_text(json.dumps({**sheet, "name": "NVIDIA-A100-SXM4-40GB", "aliases": []}))
    on = ("predict", files["model"], "--device", mine, "--json", "--weights")
    of_file, of_record = (json.loads(run(*on, w)[1]) for w in (files["measurements"], "db:calls"))
    assert of_file == of_record and of_record["gpu_active_us"] == 7.5
    code, _, err = run("predict", files["model"], "--weights", "db:calls")
    assert code == 2 and "db:calls: error: measured on NVIDIA-A100-SXM4-40GB, not on V100" in err
    assert "no record of kernels named 'call'; did you mean 'calls'?" in run(*on, "db:call")[2]


def test_a_database_is_exported_and_imported(
    run: Run, files: dict[str, Path], tmp_path: Path
) -> None:
    run("db", "init")
    run("db", "add", files["host"], files["recording"], files["prediction"], "--by", "Ann")
    assert run("db", "export", "-o", tmp_path / "all.jsonl")[0] == 0
    other = ("--db", tmp_path / "other.db")
    run("db", "init", *other)
    assert (
        "3 new of 3 records, 12 new rows" in run("db", "import", tmp_path / "all.jsonl", *other)[2]
    )
    assert run("db", "export", *other)[1] == (tmp_path / "all.jsonl").read_text()
    assert "Ann" in run("db", "steps", *other)[1]
    assert "1 more row" in run("db", "steps", "-n", "1", *other)[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "nowhere.json"], "nowhere.json: error: No such file or directory"),
        (["add", "a", "b", "--name", "x"], "--name: give one file"),
        (["kernels", "--where", "x=1"], "there is no column 'x'"),
        (["hosts", "--db", "nowhere/team.db"], "there is no database nowhere/team.db"),
        (["init", "--db", "nowhere/team.db"], "unable to open database file"),
        (["nothing"], "nothing"),
        (["import", "nowhere.jsonl"], "No such file"),
    ],
)
def test_what_cannot_be_is_refused(
    run: Run, files: dict[str, Path], words: list[str], message: str
) -> None:
    run("db", "init")
    code, _, err = run("db", *words)
    assert code in (2, 4) and message in err, err
