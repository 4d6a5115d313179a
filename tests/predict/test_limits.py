"""Limits that users set on predictions."""

from __future__ import annotations

import pytest

from irgraph.diagnostics.quantities import parse_time
from irgraph.predict.limits import broken_limits
from irgraph.text import IrgraphError

MEMORY = {"needed_bytes": 16 * 2**30, "workspace_and_context_bytes": 2**29}
SUMMARY = {
    "step_time_us": 11_000.0,
    "gpu_active_us": 5_000.0,
    "gpu_idle_us": 6_000.0,
    "memory": MEMORY,
}


@pytest.mark.parametrize(("text", "time"), [("12.3ms", 12300), ("950us", 950), ("1s", 1e6)])
def test_times_need_units(text: str, time: float) -> None:
    assert parse_time(text, "--measured") == pytest.approx(time)


@pytest.mark.parametrize("text", ["12", "ms", "-3ms", "0ms", "12 parsecs", ""])
def test_other_words_are_no_times(text: str) -> None:
    with pytest.raises(IrgraphError, match="give a time with its unit"):
        parse_time(text, "--measured")


def test_an_exceeded_limit_is_a_line() -> None:
    assert broken_limits(["step.time=12ms", "gpu.active=8ms"], SUMMARY, None) == []
    assert broken_limits(["step.time=10ms"], SUMMARY, None) == [
        "step.time is 11.000 ms, over the limit of 10ms"
    ]
    assert broken_limits(["error=5%"], SUMMARY, 10_000.0) == [
        "error is 10.0%, over the limit of 5%"
    ]
    assert broken_limits(["error=15%"], SUMMARY, 10_000.0) == []
    assert broken_limits(["memory.peak=16GiB"], SUMMARY, None) == []
    assert broken_limits(["memory.peak=15.5GiB"], SUMMARY, None) == [
        "memory.peak is 16.00 GiB (512.0 MiB of it assumed for workspace and context), "
        "over the limit of 15.5GiB"
    ]


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("eror=5%", "unknown figure 'eror'; did you mean 'error'?"),
        ("error=5", "give a percentage"),
        ("error=5%", "needs a measured time"),
        ("step.time=5", "not a time"),
        ("memory.peak=16GB", "not a size"),
    ],
)
def test_wrong_limits_say_what_is_wrong(limit: str, message: str) -> None:
    with pytest.raises(IrgraphError) as caught:
        broken_limits([limit], SUMMARY, None)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2
