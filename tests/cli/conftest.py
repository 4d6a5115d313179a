"""Running commands in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from irgraph.cli.main import main


@dataclass(frozen=True)
class Ran:
    """What a command left: exit code and both outputs."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Return a folder with a file of each format, in which commands of the fuzzing run."""
    from tests.cli.fuzz.harness import workplace

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parents[2])
        with workplace() as folder:
            yield folder


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Return a function that runs a command line and returns what it left."""

    def call(*arguments: object) -> Ran:
        capfd.readouterr()
        code = main([str(a) for a in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Ran(code, out, err)

    return call
