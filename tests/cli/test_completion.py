"""Shells complete commands and options."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def ask(words: str, **more: str) -> str:
    """Return what a shell is told for a command line whose last word is to be completed."""
    known = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    ran = subprocess.run(
        [sys.executable, "-c", "from irgraph.cli.main import main; main()"],
        env={**os.environ, "_IRGRAPH_COMPLETE": "complete_bash", **known, **more},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("irgraph pre", ["predict"]),
        ("irgraph re", ["record", "reduce", "replay", "report"]),
        ("irgraph predict --dev", ["--device"]),
        ("irgraph --inst", ["--install-completion"]),
    ],
)
def test_names_are_completed(words: str, answer: list[str]) -> None:
    assert sorted(ask(words).split()) == answer


def test_a_shell_gets_its_script() -> None:
    assert "complete -o default -F _irgraph_completion irgraph" in ask(
        "irgraph", _IRGRAPH_COMPLETE="source_bash"
    )
