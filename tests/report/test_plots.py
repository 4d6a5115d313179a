"""Plots are refused before the work, and written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from irgraph.cli.main import main
from irgraph.report import plots
from irgraph.report.plots import check_plot, save
from irgraph.text import IrgraphError


@pytest.mark.parametrize("command", ["analyze nothere", "overheads nothere", "evaluate e2e"])
@pytest.mark.parametrize("name", ["x.xyz", "x"])
def test_an_unknown_kind_of_picture_is_refused_before_anything_is_read(
    command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--plot", name]) == 2
    told = capsys.readouterr().err
    assert f"{name}: error: --plot: cannot write files of type" in told
    assert "svg" in told and "nothere" not in told


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match="the folder does not exist"):
        check_plot(str(tmp_path / "none" / "x.png"))


def test_no_plot_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "matplotlib", lambda: pytest.fail("loaded"))
    check_plot(None)


def test_a_full_disk_leaves_the_old_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    path = tmp_path / "x.png"
    path.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(IrgraphError, match=r"x\.png: error: No space left"):
        save(Figure(), str(path))
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.png"]
