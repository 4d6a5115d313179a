"""Measuring on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest

from costmodels.benchmarks.bench import Case
from costmodels.benchmarks.sweep import Sweep
from costmodels.devices.library import load_device
from costmodels.families import sweeps
from costmodels.measure import run as runner
from costmodels.measure.rows import read_rows
from costmodels.measure.run import measure
from irgraph.cli.main import main
from irgraph.diagnostics import IrgraphError

SMALL = {
    "linear": (1, 64, 16, 8), "bmm": (4, 8, 8, 8), "embedding": (64, 16, 32, 2, 2),
    "index": (64, 9), "conv2d": (2, 8, 8, 8, 3), "conv1d": (2, 8, 8, 8, 3),
    "attention": (2, 2, 16, 8), "recurrent": (2, 4, 8, 8),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every family one small case an op."""

    def plan(
        self: Sweep, name: str, count: int, seed: int = 0, dtypes: tuple[str, ...] = ("f32",)
    ) -> list[Case]:
        values = SMALL.get(name, (8,) * len(self.ranges))
        sizes = dict(zip(self.ranges, values, strict=True))
        pairs = product(self.ops, self.indices)
        return [Case(name, op, dtypes[0], sizes, kind) for op, kind in pairs][:count]

    monkeypatch.setattr(Sweep, "plan", plan)


def test_every_op_runs(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    new = measure(sweeps(), "cpu", path, runs=3)
    head, rows = read_rows(path)
    assert len(rows) == new.new > 100 and new.failed == new.unstarted == 0
    assert head["device"] == "cpu" and head["torch"] and head["seed"] == 0
    assert not [row for row in rows if "error" in row]
    assert all(row["op_us"] > 0 and row["kernel_us"] is None for row in rows)


def test_a_run_resumes(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    assert measure(["softmax"], "cpu", path, count=1, runs=3).new == 1
    path.write_text(path.read_text() + '{"half": ')
    assert measure(["softmax"], "cpu", path, runs=3).new == 3
    assert measure(["softmax"], "cpu", path, runs=3).new == 0
    assert len(read_rows(path)[1]) == 4


@pytest.mark.long
def test_a_killed_run_loses_no_finished_case(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    words = ["measure", "elementwise", "--device", "cpu", "--count", "200", "-o", str(path)]
    command = [sys.executable, "-c", f"from irgraph.cli.main import main; main({words})"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < end and _lines(path) < 5:
            time.sleep(0.01)
        process.kill()
    before = read_rows(path)[1]
    assert len(before) >= 3
    measure(["elementwise"], "cpu", path, runs=3)
    after = read_rows(path)[1]
    assert after[: len(before)] == before
    assert len({row["key"] for row in after}) == len(after)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_budget_is_kept(tmp_path: Path) -> None:
    found = measure(["elementwise"], "cpu", tmp_path / "m.jsonl", budget=0.0)
    assert found.new == 0 and found.unstarted == len(sweeps()["elementwise"].ops)


def test_a_case_larger_than_the_free_memory_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("costmodels.benchmarks.bench.free_memory", lambda *_: 300.0)
    found = measure(["softmax"], "cpu", tmp_path / "m.jsonl", count=1)
    assert found.new == found.failed == 1
    (row,) = read_rows(tmp_path / "m.jsonl")[1]
    assert row["error"] == "needs more than 40% of the free memory"


def test_running_out_of_memory_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(runner, "measure_call", full)
    measure(["softmax"], "cpu", tmp_path / "m.jsonl")
    assert {row["error"] for row in read_rows(tmp_path / "m.jsonl")[1]} == {"MemoryError"}


def test_a_file_of_another_seed_is_not_continued(tmp_path: Path) -> None:
    measure(["softmax"], "cpu", tmp_path / "m.jsonl", count=1, runs=3)
    with pytest.raises(IrgraphError, match="the file's seed is 0, not 1"):
        measure(["softmax"], "cpu", tmp_path / "m.jsonl", seed=1)


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f"{HEAD}\nnonsense\n{{}}\n")
    with pytest.raises(IrgraphError, match=r"m.jsonl:2:1: error: not a line of measurements"):
        read_rows(path)


@pytest.mark.parametrize(
    "text", ["{}", "[]", "", "1", "[" * 100_000, '{"format": "2"}', "9" * 5000]
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f"{text}\n")
    with pytest.raises(IrgraphError, match="not a file of measurements of format 2"):
        read_rows(path)


HEAD = '{"format": 2, "device": "cpu", "name": "x", "threads": 1, "python_us": 0.1}'


@pytest.mark.parametrize(
    "row",
    [
        "{}",
        "[]",
        "null",
        '{"family": "calls"}',
        '{"family": 1, "key": "k"}',
        '{"family": "calls", "key": "k", "op_us": -1}',
        '{"family": "calls", "key": "k"}',
        '{"family": "calls", "key": "k", "op_us": 1, "spread_us": 1, "kernel_us": 1}',
        '{"family": "calls", "key": "k", "op_us": 1e30}',
        '{"family": "calls", "key": "k", "op_us": "1"}',
        '{"family": "calls", "key": "k", "spread_us": null}',
        '{"family": "gemm", "key": "k", "sizes": {"m": 1e30}}',
        '{"family": "gemm", "key": "k", "sizes": ["m"]}',
    ],
)
def test_a_figure_that_cannot_be_is_named(tmp_path: Path, row: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f"{HEAD}\n{row}\n{row}\n")
    with pytest.raises(IrgraphError, match=r"m.jsonl:2:1: error: not a line of measurements"):
        read_rows(path)
    path.write_text(HEAD.replace("0.1", "-1e40") + "\n")
    with pytest.raises(IrgraphError, match="not the head of measurements"):
        read_rows(path)


CALL = {"family": "calls", "key": "aten.relu()", "op_us": 5.0, "spread_us": 0.1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([CALL, CALL | {"op_us": 600.0}], r"m.jsonl:3:1: .* takes 600 us here and 5 us in line 2"),
        ([CALL | {"op_us": 0.0}], "op_us of 'aten.relu\\(\\)' is 0: every call takes time"),
        ([CALL | {"spread_us": 1e6}], r"spread_us of .* is 1e\+06 us, of a time of 5 us"),
        ([CALL | {"spread_us": 0.0, "runs": 25}], "is 0 over 25 runs"),
        (
            [CALL | {"kernel_us": 1.0, "kernel_spread_us": 500.0}],
            "kernel_spread_us of .* is 500 us",
        ),
    ],
)
def test_measurements_that_contradict_themselves_are_refused(
    tmp_path: Path, rows: list[dict[str, object]], message: str
) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("\n".join([HEAD, *map(json.dumps, rows), ""]))
    with pytest.raises(IrgraphError, match=message):
        read_rows(path)


def test_a_line_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    line = json.dumps(CALL)
    path.write_text("\n".join([HEAD, line[:-1] + ', "op_us": 9.0}', line, ""]))
    with pytest.raises(IrgraphError, match=r"m.jsonl:2:1: error: not a line of measurements"):
        read_rows(path)


def test_an_unknown_family_gets_a_near_word(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match="did you mean 'softmax'"):
        measure(["softmix"], "cpu", tmp_path / "m.jsonl")


def test_an_absent_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match="torch has no device 'tpu'"):
        measure(["softmax"], "tpu", tmp_path / "m.jsonl")


def test_the_command_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.jsonl"
    arguments = ["--device", "cpu", "-o", str(path), "--count", "1"]
    assert main(["measure", "softmax", *arguments]) == 0
    assert "1 new measurements" in capsys.readouterr().err
    assert main(["measure", "softmax", "--dtype", "f31", *arguments]) == 2


MODEL = """model "m" { format = 1 }

device @gpu0 "v100"
input %x : f32[64, 64] in $b1

%y = aten.mm(%x, %x) : f32[64, 64] in $b2
"""


def test_calibrate_writes_a_sheet_that_predict_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "here.json"
    assert main(["calibrate", "--device", "cpu", "--scale", "0.01", "-o", str(path)]) == 0
    sheet = load_device(path)
    assert sheet.bandwidth > 0
    assert sheet.peak("f32")[0] > 0
    assert sheet.host_bandwidth(pinned=False) > 0
    assert sheet.host_bandwidth(pinned=True, to_host=True) == sheet.pinned_to_host_gbs.measured
    assert sheet.launch_us.value is not None
    model = tmp_path / "m.ir"
    model.write_text(MODEL)
    assert main(["predict", str(model), "--device", str(path)]) == 0
    assert sheet.name in capsys.readouterr().out


@pytest.mark.parametrize("device", ["cpu:1", "cuda:99", "cuda:x"])
def test_a_device_number_that_is_not_there_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(IrgraphError, match=f"torch has no device '{device}'"):
        measure(["softmax"], device, tmp_path / "m.jsonl")
