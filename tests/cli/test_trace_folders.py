"""Folders of traces, one for each rank, and traces that name the same rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from irgraph.cli.main import main
from tests.capture.kineto.builder import write
from tests.cli.fuzz.seeds import MODEL


def run(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Return the exit code of a command, its output and its errors."""
    capfd.readouterr()
    code = main([str(word) for word in words])
    out, err = capfd.readouterr()
    return code, out, err


def ranks(folder: Path, *numbers: int) -> list[Path]:
    """Write a trace for each rank, and return their paths."""
    return [
        write(folder, name=f"{index}.json", distributedInfo={"rank": rank})
        for index, rank in enumerate(numbers)
    ]


def test_a_folder_is_read_as_its_traces(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = ranks(tmp_path, 1, 0)
    (tmp_path / "et.json").write_text('{"schema": "1.0.1", "nodes": []}')
    (tmp_path / "notes.txt").write_text("ours")
    for command in (["analyze"], ["overheads", "--name", "host"], ["replay"]):
        code, out, _ = run(capfd, *command, tmp_path, "--json")
        assert (code, json.loads(out)) == (
            0,
            json.loads(run(capfd, *command, *files, "--json")[1]),
        )


def test_a_folder_without_traces_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capfd, "analyze", tmp_path)
    assert (code != 0, "and no other Kineto trace" in err) == (True, True)


def test_traces_of_the_same_rank_are_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "name rank" not in run(capfd, "analyze", *ranks(tmp_path, 0, 1))[2]
    assert "warning: 2 traces name rank 1" in run(capfd, "analyze", *ranks(tmp_path, 0, 1, 1))[2]


@pytest.mark.parametrize("command", ["replay {one} --overheads", "predict {model} --recorded"])
def test_a_folder_of_several_traces_is_refused_where_one_is_needed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    one, _ = ranks(tmp_path, 0, 1)
    model = tmp_path / "model.ir"
    model.write_text(MODEL)
    words = command.format(one=one, model=model).split()
    code, _, err = run(capfd, *words, tmp_path)
    assert (code, "the folder holds 2 traces" in err, f"{one}" in err) == (4, True, True), err
