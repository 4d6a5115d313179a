"""show, verify and fmt; and what every command does about bad input."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from irgraph import load, predict
from irgraph.text import print_graph
from tests.cli.conftest import Ran
from tests.strategies import random_graph

Run = Callable[..., Ran]

MODEL = """model "tiny" { format = 1  dims = {B = 8} }

device @gpu0 "v100"
input %x : f32[B, 4] in $b1

%y = aten.relu(%x) : f32[B, 4] in $b2
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.ir"
    path.write_text(MODEL)
    return path


def test_show_counts(run: Run, model: Path) -> None:
    assert "aten.relu" in run("show", model).out
    summary = json.loads(run("show", model, "--json").out)
    assert summary["ops"] == {"all": 1, "top_level": 1, "leaves": 1}
    assert summary["tensors"]["input"] == {"count": 1, "bytes": 128}


def test_fmt_prints_the_canonical_layout(run: Run, model: Path) -> None:
    model.write_text(MODEL.replace("%x : f32[B, 4]", "%x:f32[B,4]"))
    assert run("fmt", model).out == MODEL
    assert run("fmt", "-i", model).code == 0
    assert model.read_text() == MODEL


def test_verify_answers_no_with_every_finding(run: Run, model: Path) -> None:
    assert run("verify", model).code == 0
    model.write_text(MODEL + "%y = aten.relu(%x) : f32[B, 4] in $b2\naten.relu(%x) on main/s\n")
    ran = run("verify", model)
    assert ran.code == 1
    assert "tiny.ir:7: aten.relu: %y is defined a second time" in ran.err
    assert "tiny.ir:8: aten.relu: runs on the undeclared stream s" in ran.err
    assert "2 findings" in ran.err


def test_verify_knows_the_shipped_device_sheets(run: Run, model: Path) -> None:
    model.write_text(MODEL.replace('"v100"', '"v1000"'))
    ran = run("verify", model)
    assert ran.code == 1
    assert "@gpu0: no device sheet named 'v1000'; did you mean" in ran.err


def test_random_models_survive_fmt(run: Run, tmp_path: Path) -> None:
    text = print_graph(random_graph(11))
    path = tmp_path / "a.ir"
    path.write_text(text)
    assert run("fmt", path).out == text


@pytest.mark.parametrize("command", ["show", "verify", "fmt", "predict", "opt"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the text ends too early"),
        (b"hello", "unexpected 'hello'"),
        (MODEL.encode()[:-25], "the text ends too early"),
        (b'{"schema": "1.1.1", "nodes": []}', "this is a PyTorch execution trace"),
        (b'{"traceEvents": []}', "this is a Kineto trace"),
        (b"[1]", "this is JSON"),
        (b"\x00\xff\x80", "not a text file"),
        (gzip.compress(MODEL.encode(), mtime=0)[:40], "cut off after 40 bytes"),
        (MODEL.replace("format = 1", "format = 9").encode(), "format 9 of model.ir is newer"),
    ],
)
def test_unusable_models_give_one_clear_error(
    run: Run, tmp_path: Path, command: str, content: bytes, message: str
) -> None:
    path = tmp_path / "bad.ir"
    path.write_bytes(content)
    ran = run(command, path)
    assert ran.code == 4
    assert message in ran.err
    assert "bad.ir" in ran.err
    assert ran.out == ""


def test_a_missing_model_is_named(run: Run) -> None:
    ran = run("show", "nowhere.ir")
    assert (ran.code, ran.err) == (4, "nowhere.ir: error: No such file or directory\n")


def test_wrong_usage_exits_with_2(run: Run) -> None:
    assert run("shwo", "x").code == 2
    assert run("show").code == 2
    assert run("show", "x", "--nonsense").code == 2


NOTES = "in $b2 [time = 800us, by = measured, kernels = 1]"
MEASURED = MODEL.replace("in $b2", NOTES).replace(
    "dims = {B = 8}", 'dims = {B = 8}  measured_on = "NVIDIA A100-SXM4-40GB"'
)


def test_measured_times_are_used_unless_formulas_are_asked_for(run: Run, model: Path) -> None:
    model.write_text(MEASURED)
    found = json.loads(run("predict", model, "--json").out)
    assert found["device"]["name"] == "A100-SXM4-40GB"
    assert found["coverage"] == {"measured": 1.0}
    found = json.loads(run("predict", model, "--json", "--formulas").out)
    assert "measured" not in found["coverage"]


def test_diff_says_what_it_did_with_measured_times(run: Run, model: Path, tmp_path: Path) -> None:
    model.write_text(MEASURED)
    other = tmp_path / "other.ir"
    other.write_text(MEASURED.replace("%y : f32[B, 4] in $b2", "%y : f16[B, 4] in $b2"))
    found = json.loads(run("diff", model, other, "--json").out)
    assert found["device"] == "A100-SXM4-40GB"
    assert found["measured_times"].startswith("used")
    assert "measured kernel times used" in run("diff", model, other).out


def test_opt_says_that_its_gains_are_the_models_alone(run: Run, model: Path) -> None:
    model.write_text(MEASURED)
    assert "by models alone" in run("opt", model, "--device", "a100", "-e", "remove aten.relu").err


def test_a_model_without_any_op_is_not_predicted(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "empty.ir"
    path.write_text('model "m" { format = 1 }\n\ndevice @gpu0 "v100"\n\n"only a label"() { }\n')
    result = run("predict", path)
    assert (result.code, result.out) == (4, "")
    assert "the model has no op, so there is no step to predict" in result.err
    warning, _ = predict(load(path)).warnings
    assert warning == "the model has no op: there is nothing to predict"


def test_a_model_measured_in_part_says_who_prices_the_rest(run: Run, model: Path) -> None:
    model.write_text(MEASURED + "%z = aten.sigmoid(%y) : f32[B, 4] in $b3\n")
    found = json.loads(run("predict", model, "--json").out)["measured_times"]
    assert "models price 1 op without a measured time (changed or added since" in found
    assert "`irgraph diff BEFORE AFTER` compares like with like" in found
    model.write_text(MEASURED)
    assert "irgraph diff" not in json.loads(run("predict", model, "--json").out)["measured_times"]
