"""Fixtures that several test files share."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# a loaded machine is slow, not wrong
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

if "PYTEST_XDIST_WORKER" in os.environ:
    # one core a worker: threads that wait for each other's cores take ten times as long
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


NO_DATA = "IRGRAPH_DATA is not set"
NO_BROWSER = "no Chromium is installed"
NO_POSTGRES = "PostgreSQL is not installed"
NO_PROGRAMS = "no folder of programs is beside IRGRAPH_DATA"
NO_LIBRARY = "the library of the script is not installed"
SKIPS = (NO_DATA, NO_BROWSER, NO_POSTGRES, NO_PROGRAMS, NO_LIBRARY, "CUDA device")
"""What a skip's reason names: no measurements, browser, server or library, or a GPU or none."""


EXCUSES = "only absent reference data, browsers, GPUs and PostgreSQL excuse a test"


def no_other_skip(report: Any) -> Any:
    """Return a report, failed where something was skipped for any other reason."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2]
        if not any(known in reason for known in SKIPS):
            report.outcome = "failed"
            report.longrepr = f"{reason}\n{EXCUSES}"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Fail tests that are skipped without an excuse."""
    return no_other_skip((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """Fail files that are skipped without an excuse."""
    return no_other_skip((yield))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count tests with a browser among the slow ones."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder of reference measurements, or skip where none is named."""
    folder = os.environ.get("IRGRAPH_DATA")
    if not folder:
        pytest.skip(f"{NO_DATA}: no reference measurements to test against")
    return Path(folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-golden``."""
    parser.addoption("--update-golden", action="store_true", help="write golden files anew")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return a browser, or skip where none is installed."""
    from tests.browser import started

    yield from started()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that every figure which is saved adds its description to."""
    from matplotlib.figure import Figure

    from tests.report.figures import described

    found: list[str] = []
    save = Figure.savefig

    def saved(figure: Figure, *args: Any, **options: Any) -> None:
        save(figure, *args, **options)
        found.append(described(figure))

    monkeypatch.setattr(Figure, "savefig", saved)
    return found


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Return what compares a text with a file, or writes it anew."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing: run pytest --update-golden and look at it"
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def golden(page: Callable[[Path, str], None]) -> Callable[[str, str], None]:
    """Return what compares a text with a file below ``tests/golden``, or writes it anew."""
    return lambda name, text: page(Path(__file__).parent / "golden" / name, text)
