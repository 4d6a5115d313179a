"""Wrong command lines: one error in the form of all others, and the nearest name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.conftest import Ran


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        ("predic x", "error: no command 'predic'; did you mean 'predict'?", "irgraph"),
        (
            "predict --devise x",
            "error: no option --devise; did you mean '--device'?",
            "irgraph predict",
        ),
        ("predict", "error: missing argument 'MODEL'", "irgraph predict"),
        ("predict a b", "error: got unexpected extra argument(s) (b)", "irgraph predict"),
        (
            "show x --depth 0",
            "error: invalid --depth: ",
            "irgraph show",
        ),
    ],
    ids=["command", "option", "missing", "extra", "value"],
)
def test_a_wrong_command_line_is_one_error_and_a_hint(
    run: Callable[..., Ran], given: str, said: str, hint: str
) -> None:
    ran = run(*given.split())
    first, second = ran.err.splitlines()
    assert ran.code == 2
    assert first.startswith(said)
    assert second == f"hint: {hint} --help"
