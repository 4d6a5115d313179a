"""What stands before the subcommand."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

from tests.cli.conftest import Ran


def test_the_version_needs_no_subcommand(run: Callable[..., Ran]) -> None:
    ran = run("--version")
    assert (ran.code, ran.out) == (0, f"irgraph {version('irgraph')}\n")
