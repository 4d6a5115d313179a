"""The profiler's own cost."""

from __future__ import annotations

import json

import pytest

from irgraph.capture.recording import calibrate
from irgraph.cli.main import main


def test_host_events_cost_time_and_launches_are_not_measured_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibrate, "REPEATS", 3)
    host, launch = calibrate.calibrate_profiler("cpu")
    assert 0.0 <= host < 1000.0
    assert launch is None


def test_the_command_does_not_recommend_a_launch_cost_of_zero(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate, "REPEATS", 1)
    assert main(["calibrate-profiler"]) == 0
    told = capsys.readouterr().err
    assert "launches: not measured" in told
    assert ",0.00" not in told
    assert main(["calibrate-profiler", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device_us"] is None
