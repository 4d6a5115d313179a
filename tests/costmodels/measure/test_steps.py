"""Timing the steps of a file again, on a card that is a stand-in here."""

from __future__ import annotations

from typing import Any

import pytest

from costmodels.evaluate.timed.steps import Step
from costmodels.measure.steps import MIN_STEPS, time_steps

torch = pytest.importorskip("torch")


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 3)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 10)
    monkeypatch.setattr("costmodels.measure.steps.SECONDS", 0.0)


def step(program: str, **options: Any) -> Step:
    return Step(program, 2, options, "", False, False, 1.0, 1.0, 1.0, 1.0, 0)


@pytest.mark.usefixtures("card")
def test_a_step_is_timed_as_the_file_names_it_and_a_failure_is_kept() -> None:
    wanted = [
        step("score", name="ddp", rows=100),
        step("gpt", layers=1, width=64, length=8, kind="f32", update="loop"),
        step("score", name="unheard"),
    ]
    scored, trained, failed = time_steps(wanted, "cpu")
    assert (scored["program"], scored["name"], scored["rows"]) == ("score", "ddp", 100)
    for row in (scored, trained):
        low, high = row["q"]
        assert 0 < row["host_us"] <= row["step_us"]
        assert low <= row["step_us"] <= high + 0.1
        assert (row["runs"], row["peak"]) == (MIN_STEPS, 7)
    assert "error" in failed
    assert "step_us" not in failed
