"""Measuring a model's calls on the CPU, and pricing it by them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodels.measure.calibrate import calibrate, to_json
from costmodels.measure.calls import measure_calls
from costmodels.measure.rows import read_rows
from costmodels.measure.run import torch_for
from costmodels.pricing.calls import call_key
from irgraph import predict
from irgraph.cli.main import main
from irgraph.text import parse

MODEL = """model "m" { format = 1 }

device @gpu0 "v100"
param %w : f32[8, 8] in $w
input %x : f32[4, 8] in $x
input %i : i64[3] in $i

%t = aten.t(%w) : f32[8, 8; 1, 8] in $w
%y = aten.mm(%x, %t) : f32[4, 8] in $y
%z = aten.mm(%y, %t) : f32[4, 8] in $z
aten.add_(%z!, %y, alpha = 0.5)
%e = aten.embedding(%w, %i) : f32[3, 8] in $e
"""
KEYS = [
    "aten.mm(f32[4,8], f32[8,8;1,8])",
    "aten.add_(f32[4,8], f32[4,8])",
    "aten.embedding(f32[8,8], i64[3])",
]


@pytest.fixture
def sheet(tmp_path: Path) -> str:
    path = tmp_path / "cpu.json"
    path.write_text(to_json(calibrate(torch_for("cpu"), "cpu", scale=0.01)))
    return str(path)


def test_the_calls_of_a_model_are_measured_once_each(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    graph = parse(MODEL)
    assert [call_key(op) for op in graph.ops[1:2] + graph.ops[3:]] == KEYS
    assert measure_calls([graph, graph], "cpu", path, runs=3) == 3
    head, rows = read_rows(path)
    assert [row["key"] for row in rows] == KEYS
    assert head["python_us"] > 0 and all(row["op_us"] > 0 for row in rows)
    assert measure_calls([graph], "cpu", path, runs=3) == 0


def test_a_model_is_priced_by_them(tmp_path: Path, sheet: str) -> None:
    path = tmp_path / "calls.jsonl"
    graph = parse(MODEL)
    assert main(["measure", _written(tmp_path), "--device", "cpu", "-o", str(path)]) == 0
    found = predict(graph, device=sheet, weights=[str(path)])
    head, rows = read_rows(path)
    times = {row["key"]: row["op_us"] - head["python_us"] for row in rows}
    kernels = found.kernels()
    assert [k.time for k in kernels] == pytest.approx([times[KEYS[i]] for i in (0, 0, 1, 2)])
    assert {k.by for k in kernels} == {"measured"} and {k.launch for k in kernels} == {"call"}
    assert [k.family for k in kernels] == ["gemm", "gemm", "elementwise", "embedding"]
    assert found.timeline.active_time == pytest.approx(sum(k.time for k in kernels))
    wider = predict(graph, device=sheet).kernels()
    assert {k.by for k in wider} == {"heuristic"} and {k.launch for k in wider} == {"call"}


def test_calls_of_another_device_are_refused(
    tmp_path: Path, sheet: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "calls.jsonl"
    measure_calls([parse(MODEL)], "cpu", path, runs=3)
    text = path.read_text().replace('"threads": ', '"threads": 9')
    path.write_text(text)
    words = ["predict", _written(tmp_path), "--device", sheet, "--weights", str(path)]
    assert main(words) == 2
    assert "measured on cpu-" in capsys.readouterr().err


def test_a_cpu_is_not_called_a_gpu(
    tmp_path: Path, sheet: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", _written(tmp_path), "--device", sheet, "--show", "figures"]
    words += ["--limit", "memory.peak=0.0001MiB"]
    assert main(words) == 1
    printed = capsys.readouterr()
    assert "CPU active" in printed.out
    assert not any(words in printed.out for words in ("GPU active", "TF32", "workspace"))
    assert "workspace" not in printed.err


def test_models_go_without_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", _written(tmp_path), "softmax", "--device", "cpu"]) == 2
    assert "models are measured as they are" in capsys.readouterr().err


def test_composite_calls_are_priced_by_the_calls_inside(tmp_path: Path, sheet: str) -> None:
    inside = MODEL.replace(
        "%y = aten.mm(%x, %t) : f32[4, 8] in $y",
        """\
%y = aten.linear(%x, %w) : f32[4, 8] in $y {
  %u = aten.t(%w) : f32[8, 8; 1, 8] in $w
  %y = aten.mm(%x, %u) : f32[4, 8] in $y
}""",
    )
    path = tmp_path / "calls.jsonl"
    measure_calls([parse(MODEL)], "cpu", path, runs=3)
    found = predict(parse(inside), device=sheet, weights=[str(path)])
    assert {k.by for k in found.kernels()} == {"measured"}
    assert json.loads(path.read_text().splitlines()[1])["family"] == "calls"


def _written(folder: Path) -> str:
    path = folder / "m.ir"
    path.write_text(MODEL)
    return str(path)
