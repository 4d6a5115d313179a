"""Files are written into the folder, whole or not at all, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import irgraph
from tests.studio.conftest import SMALL

EDIT = "replace %y = aten.relu(%x) with %y = aten.sigmoid(%x)"


@pytest.fixture
def save(post: Callable[..., Any]) -> Callable[..., Any]:
    """Return what saves under names that are good unless they are given."""
    post("apply", text=EDIT)
    return lambda status=200, **given: post(
        "save", status, **{"script": "edit.irg", "model": "edited.ir", **given}
    )


def test_the_script_makes_the_model(save: Callable[..., Any], tmp_path: Path) -> None:
    assert save() == {"saved": ["edit.irg", "edited.ir"]}
    script = (tmp_path / "edit.irg").read_text()
    ran = irgraph.run_script(irgraph.parse(SMALL), script)
    assert ran.graph == irgraph.load(tmp_path / "edited.ir")
    assert "aten.sigmoid" in (tmp_path / "edited.ir").read_text()


def test_a_file_that_is_there_is_asked_about(save: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "edited.ir").write_text("mine")
    assert save() == {"taken": "edited.ir: there already"}
    assert [path.name for path in tmp_path.iterdir()] == ["edited.ir"]
    assert (tmp_path / "edited.ir").read_text() == "mine"
    save(replace=True)
    assert (tmp_path / "edited.ir").read_text().startswith("model")


OUTSIDE = (
    "../edited.ir", "/tmp/edited.ir", "a/edited.ir", "..", ".", "", ".ir", ".hidden.ir",
    "edited.py", "edited.ir\n", "edited.ir\0", "a\\edited.ir", "..\\edited.ir", "é.ir",
    "~/edited.ir", "x" * 200 + ".ir", "C:edited.ir", " edited.ir",
)  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE, ids=repr)
def test_other_paths_are_refused(save: Callable[..., Any], tmp_path: Path, name: str) -> None:
    found = save(422, model=name, replace=True)
    assert "is not the name of a model in this folder" in found["problems"][0]["message"]
    assert not list(tmp_path.iterdir())
    assert not list(tmp_path.parent.glob("*.ir"))


def test_links_are_not_followed(save: Callable[..., Any], tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside.txt"
    outside.write_text("mine")
    (tmp_path / "edited.ir").symlink_to(outside)
    (tmp_path / "broken.ir").symlink_to(tmp_path / "nothing")
    (tmp_path / "folder.ir").mkdir()
    for name in ("edited.ir", "broken.ir", "folder.ir"):
        assert "is a link" in save(422, model=name, replace=True)["problems"][0]["message"]
    assert outside.read_text() == "mine"
    assert not (tmp_path / "edit.irg").exists()


def test_what_cannot_be_written_is_said(
    save: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    found = save(422)
    assert "No space left" in found["problems"][0]["message"]
    assert not list(tmp_path.iterdir())
