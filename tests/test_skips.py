"""Skips need an excuse, and golden files that were written anew are a success."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def outcome(folder: Path, text: str, *options: str) -> tuple[int, str]:
    """Return the exit code and output of pytest for a file of tests, under the project's rules."""
    (folder / "test_toy.py").write_text(text)
    (folder / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, f"--rootdir={folder}", *options, folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode, ran.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("pytest.skip('IRGRAPH_DATA is not set')", 0),
        ("pytest.skip('needs a CUDA device')", 0),
        ("pytest.skip('no Chromium is installed')", 0),
        ("pytest.skip('PostgreSQL is not installed on this machine')", 0),
        ("pytest.xfail('known')", 0),
        ("pytest.skip('another day')", 1),
        ("pytest.importorskip('no_such_package')", 1),
    ],
    ids=["data", "gpu", "browser", "server", "xfail", "other", "package"],
)
def test_only_absent_data_browsers_gpus_and_servers_excuse_a_test(
    tmp_path: Path, line: str, code: int
) -> None:
    found, text = outcome(tmp_path, f"import pytest\ndef test_it():\n    {line}\n")
    assert found == code, text
    assert ("only absent reference data, browsers, GPUs" in text) == bool(code)


def test_a_whole_file_needs_an_excuse_too(tmp_path: Path) -> None:
    found, text = outcome(tmp_path, "import pytest\npytest.importorskip('no_such_package')\n")
    assert found == 2, text
    assert "only absent reference data" in text


@pytest.mark.long
def test_an_update_of_golden_files_is_a_success(tmp_path: Path) -> None:
    path = tmp_path / "golden.txt"
    path.write_text("old")
    text = f"from pathlib import Path\ndef test_it(page):\n    page(Path({str(path)!r}), 'new')\n"
    assert outcome(tmp_path, text)[0] == 1
    assert outcome(tmp_path, text, "--update-golden")[0] == 0
    assert path.read_text() == "new"
