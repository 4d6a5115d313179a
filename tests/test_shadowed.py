"""A user's own file that bears the name of one of irgraph's packages is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from irgraph.shadowed_packages import PACKAGES

ROOT = Path(__file__).parents[1]
SCRIPT = """import irgraph
try:
    irgraph.passes()
except irgraph.IrgraphError as error:
    print(error)
"""


def run(folder: Path, text: str = SCRIPT, **environment: str) -> str:
    """Return what a script in a folder prints; Python looks there first."""
    (folder / "step.py").write_text(text)
    command = [sys.executable, "step.py"]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    ).stdout


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


COUNT = "import irgraph\nprint(len(irgraph.passes()) > 9)"


def test_packages_that_are_installed_elsewhere_hide_nothing(tmp_path: Path) -> None:
    """As where a package manager links each of them into folders of their own."""
    for folder, names in (("one", ["irgraph"]), ("two", PACKAGES)):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).symlink_to(ROOT / name)
    path = f"{tmp_path / 'one'}{os.pathsep}{tmp_path / 'two'}"
    assert run(tmp_path, COUNT, PYTHONPATH=path) == "True\n"


def test_cost_models_that_are_not_used_may_be_hidden(tmp_path: Path) -> None:
    (tmp_path / "costmodels.py").write_text("")
    assert run(tmp_path, COUNT, IRGRAPH_BACKEND="mine") == "True\n"


def test_the_command_line_names_it_too(tmp_path: Path) -> None:
    (tmp_path / "passes.py").write_text("")
    command = [sys.executable, "-c", "from irgraph.__main__ import run; raise SystemExit(run())"]
    found = subprocess.run([*command, "passes"], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 2
    assert f"{tmp_path / 'passes.py'} hides irgraph's own package 'passes'" in found.stderr
