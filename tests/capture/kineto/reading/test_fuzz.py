"""Randomly damaged traces never cause a traceback, and never a silently different step."""

from __future__ import annotations

import pytest

from tests.capture.kineto.reading.fuzz import fuzz


@pytest.mark.slow
def test_five_hundred_damaged_traces() -> None:
    outcome = fuzz(500)
    assert outcome.failed == {}
    assert outcome.silent == []
    assert sum(outcome.counts.values()) == 500
    assert outcome.peak <= 2 * outcome.sound_peak
