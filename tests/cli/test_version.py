"""What stands before the subcommand."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import pytest

from tests.cli.conftest import Ran


def test_the_version_needs_no_subcommand(run: Callable[..., Ran]) -> None:
    try:
        installed = version("irgraph")
    except PackageNotFoundError:
        pytest.skip("irgraph is not installed, only on the path")
    ran = run("--version")
    assert (ran.code, ran.out) == (0, f"irgraph {installed}\n")
