"""What cannot be written, and numbers that mean nothing, are refused before any work."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from irgraph.files import check_writable
from irgraph.text import IrgraphError
from tests.cli.conftest import Ran

Run = Callable[..., Ran]

JOBS = {
    "calibrate": ["calibrate", "--device", "cpu"],
    "measure": ["measure", "softmax", "--device", "cpu"],
    "train": ["train", "gemm", "--data", ".", "--steps", "20", "--no-study"],
    "search": ["search", "gemm", "--op", "linear", "--device", "V100", "--data", "."],
    "evaluate": ["evaluate", "kernels", "--plot"],
    "capture": ["capture", "nowhere.py:step"],
    "lower": ["lower", "nowhere.json"],
}


@pytest.mark.parametrize("job", sorted(JOBS))
def test_an_output_that_cannot_be_written_is_refused_first(
    job: str, run: Run, tmp_path: Path
) -> None:
    words = JOBS[job]
    option = [] if words[-1] == "--plot" else ["-o"]
    ran = run(*words, *option, tmp_path / "none" / "out")
    assert ran.code == 4
    assert f"{tmp_path}/none/out: error: No such file or directory" in ran.err
    assert f"the folder {tmp_path}/none does not exist" in ran.err


def test_a_folder_is_no_output(run: Run, tmp_path: Path) -> None:
    ran = run("calibrate", "--device", "cpu", "-o", tmp_path)
    assert ran.code == 4
    assert "Is a directory" in ran.err


def test_the_check_of_an_output_leaves_nothing_and_changes_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("as it was")
    check_writable(kept)
    check_writable(tmp_path / "new")
    check_writable("-")
    check_writable(None)
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]
    assert kept.read_text() == "as it was"


def test_a_recording_that_cannot_be_written_is_refused_before_a_step(
    run: Run, tmp_path: Path
) -> None:
    program = tmp_path / "step.py"
    program.write_text("def make(batch, device):\n    raise RuntimeError('it ran')\n")
    (tmp_path / "out" / "kineto.json.gz").mkdir(parents=True)
    ran = run("record", f"{program}:make", "-o", tmp_path / "out")
    assert ran.code == 4
    assert "Is a directory" in ran.err
    assert "it ran" not in ran.err


@pytest.mark.parametrize("number", ["nan", "inf", "-1"])
@pytest.mark.parametrize(
    "words",
    [
        ["measure", "softmax", "--budget"],
        ["calibrate", "--scale"],
        ["check", "a.ir", "b.ir", "--limit"],
        ["replay", "trace.json", "--limit"],
    ],
    ids=lambda words: words[0],
)
def test_numbers_that_mean_nothing_are_refused(words: list[str], number: str, run: Run) -> None:
    ran = run(*words, number)
    assert ran.code == 2
    assert ran.err.startswith(f"error: invalid {words[-1]}: ")


def test_measurements_continue_regular_files_only() -> None:
    run = importlib.import_module("costmodels.measure.run")
    with pytest.raises(IrgraphError, match="/dev/full: error: not a regular file"):
        run.resume(Path("/dev/full"), {})


def test_a_budget_of_no_number_is_refused_by_the_library(tmp_path: Path) -> None:
    run = importlib.import_module("costmodels.measure.run")
    with pytest.raises(IrgraphError, match="the budget is nan seconds"):
        run.measure(["softmax"], "cpu", tmp_path / "m.jsonl", budget=float("nan"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "norm", "--data", "."], "with kernels/*.csv.gz it is 'layer_norm'"),
        (["train", "linear", "--data", "."], "with kernels/*.csv.gz it is 'gemm'"),
        (["measure", "gemm", "--device", "cpu"], "irgraph train calls linear and bmm so"),
        (["measure", "layer_norm", "--device", "cpu"], "irgraph train calls norm so"),
        (["measure", "sofmax", "--device", "cpu"], "did you mean 'softmax'"),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_a_family_by_its_other_name_is_told_the_right_one(
    words: list[str], told: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*words)
    assert ran.code == 2
    assert told in ran.err
    assert not list(tmp_path.iterdir())
