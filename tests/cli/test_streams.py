"""Outputs that take no more, and inputs that are odd."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import pytest

DLRM = str(resources.files("costmodels.evaluate") / "data" / "dlrm_default.ir")


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in which ``IRGRAPH`` stands for this interpreter's."""
    full = command.replace("IRGRAPH", f"{sys.executable} -m irgraph")
    options = {"capture_output": True, "text": True, "check": False}
    return subprocess.run(["bash", "-c", full], **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("command", ["show", "predict", "fmt"])
def test_a_reader_that_leaves_is_no_error(command: str) -> None:
    ran = shell(f"IRGRAPH {command} {DLRM} | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_full_disk_is_said() -> None:
    ran = shell(f"IRGRAPH fmt {DLRM} > /dev/full")
    assert ran.returncode == 4
    assert "No space left on device" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_closed_output_is_no_error() -> None:
    ran = shell(f"IRGRAPH fmt {DLRM} >&-")
    assert "Traceback" not in ran.stderr
    assert ran.returncode in (0, 4)


def test_models_come_from_standard_input() -> None:
    ran = shell(f"cat {DLRM} | IRGRAPH show - --json")
    assert ran.returncode == 0
    assert '"name"' in ran.stdout
