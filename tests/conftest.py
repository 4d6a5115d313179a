"""Fixtures that several test files share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # one core a worker: threads that wait for each other's cores take ten times as long
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder of reference measurements, or skip where none is named."""
    folder = os.environ.get("IRGRAPH_DATA")
    if not folder:
        pytest.skip("IRGRAPH_DATA is not set: no reference measurements to test against")
    return Path(folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-golden``."""
    parser.addoption("--update-golden", action="store_true", help="write golden files anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return what compares a text with a file below ``tests/golden``, or writes it anew."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing: run pytest --update-golden and look at it"
        assert text == path.read_text(encoding="utf-8")

    return compare
