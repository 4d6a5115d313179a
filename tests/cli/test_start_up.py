"""Commands start quickly: processor time in turn with that of what cannot be avoided."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.bench_commands import BARE, IRGRAPH, NUMPY, thousand_ops, times

pytestmark = pytest.mark.slow


def test_the_help_takes_at_most_twelve_bare_interpreters() -> None:
    _, ratio = times((*IRGRAPH, "--help"), BARE)
    assert ratio <= 12


def test_a_prediction_takes_a_few_times_what_importing_numpy_takes(tmp_path: Path) -> None:
    _, ratio = times((*IRGRAPH, "predict", thousand_ops(tmp_path)), NUMPY)
    assert ratio <= 5.5  # 4 with the pinned typer; one that imports pydantic adds 1.4
