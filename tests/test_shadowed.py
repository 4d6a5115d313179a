"""A user's own file that bears the name of one of irgraph's packages is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from irgraph.shadowed import PACKAGES

SCRIPT = """import irgraph
try:
    irgraph.passes()
except irgraph.IrgraphError as error:
    print(error)
"""


def run(folder: Path, text: str = SCRIPT) -> str:
    """Return what a script in a folder prints; Python looks there first."""
    (folder / "step.py").write_text(text)
    command = [sys.executable, "step.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", PACKAGES)
def test_a_file_that_hides_a_package_is_named(tmp_path: Path, name: str) -> None:
    own = tmp_path / f"{name}.py"
    own.write_text("")
    found = run(tmp_path)
    assert f"{own} hides irgraph's own package {name!r}" in found
    assert "rename the file" in found


def test_a_folder_that_hides_a_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "passes").mkdir()
    (tmp_path / "passes" / "__init__.py").write_text("")
    found = run(tmp_path)
    assert f"{tmp_path / 'passes'} hides irgraph's own package 'passes'" in found
    assert "rename the folder" in found


def test_a_folder_that_is_no_package_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "passes").mkdir()
    assert run(tmp_path, "import irgraph\nprint(len(irgraph.passes()) > 9)") == "True\n"
