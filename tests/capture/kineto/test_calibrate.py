"""The profiler's own cost."""

from __future__ import annotations

import pytest

from irgraph.capture.kineto import calibrate


def test_host_events_cost_time_and_nothing_is_launched_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(calibrate, "REPEATS", 3)
    host, launch = calibrate.calibrate_profiler("cpu")
    assert 0.0 <= host < 1000.0
    assert launch == 0.0
