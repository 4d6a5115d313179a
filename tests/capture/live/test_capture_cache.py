"""Captures kept in a folder: read again, and made anew where anything they depend on changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from irgraph.capture.common.result import Capture
from irgraph.capture.live import capture_cache, capture_file
from irgraph.diagnostics import IrgraphError

STEP = """
from pathlib import Path
import torch
from widths import WIDTH

Path(__file__).with_name("runs").open("a").write("x")

def step(batch, device, layers=1):
    parts = [torch.nn.Linear(WIDTH, WIDTH, device=device) for _ in range(layers)]
    model = torch.nn.Sequential(*parts)
    given = torch.empty(batch, WIDTH, device=device)
    return lambda: model(given).sum()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with a program and what it imports, which no other test finds loaded."""
    (tmp_path / "made.py").write_text(STEP)
    (tmp_path / "widths.py").write_text("WIDTH = 8\n")
    yield tmp_path
    sys.modules.pop("widths", None)


def captured(folder: Path, call: str = "step", batch: int = 4) -> Capture:
    return capture_file(f"{folder}/made.py:{call}", batch=batch, cache=folder / "captures")


def runs(folder: Path) -> int:
    """Return how often the program ran."""
    return len((folder / "runs").read_text())


def test_what_is_asked_again_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = captured(folder), captured(folder)
    assert again == first == capture_file(f"{folder}/made.py:step", batch=4)
    assert [op.origin for op in again.graph.walk()] == [op.origin for op in first.graph.walk()]
    assert runs(folder) == 2  # with the one that is not kept
    others = [captured(folder, "step(layers=2)"), captured(folder, batch=8)]
    assert runs(folder) == 4 and others[0].graph != first.graph != others[1].graph
    monkeypatch.chdir(folder)
    assert captured(Path(), "step(layers=2)").graph == others[0].graph


def test_a_program_that_changed_is_captured_anew(folder: Path) -> None:
    captured(folder)
    (folder / "made.py").write_text(STEP.replace("sum()", "mean()"))
    names = [op.name for op in captured(folder).graph.leaves()]
    assert "aten.mean" in names and runs(folder) == 2
    assert [op.name for op in captured(folder).graph.leaves()] == names and runs(folder) == 2


def test_so_is_one_of_which_an_imported_file_changed(
    folder: Path,
) -> None:
    captured(folder)
    del sys.modules["widths"]  # as in another process
    (folder / "widths.py").write_text("WIDTH = 16\n")
    found = captured(folder)
    assert runs(folder) == 2
    assert {int(d.tensor.shape[-1]) for d in found.graph.tensors} == {16}


def test_other_versions_of_what_is_installed_are_captured_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured(folder)
    monkeypatch.setattr(capture_cache, "installed_versions", lambda: ("torch 99",))
    captured(folder)
    assert runs(folder) == 2


@pytest.mark.parametrize("text", ["", "{}", '{"sources": {}}', "half"])
def test_a_damaged_file_is_made_again(folder: Path, text: str) -> None:
    first = captured(folder)
    (path,) = (folder / "captures").iterdir()
    whole = path.read_text()
    path.write_text(text or whole[: len(whole) // 2])
    assert captured(folder) == first and path.read_text() == whole


def test_a_folder_that_cannot_be_is_named(folder: Path) -> None:
    (folder / "captures").write_text("")
    with pytest.raises(IrgraphError, match="File exists") as caught:
        captured(folder)
    assert caught.value.exit_code == 2 and "captures" in str(caught.value)
