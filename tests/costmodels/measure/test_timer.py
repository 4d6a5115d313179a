"""Summing device work from the events of a profile, and timing calls."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from costmodels.measure import timer
from costmodels.measure.timer import MIN_CALLS, kernel_sums, measure_call

WALL = SimpleNamespace(get_num_threads=lambda: 2)
"""Torch on several threads, whose work is timed by the wall's clock."""


@dataclass
class Span:
    """A stretch of time as torch's profiler has it."""

    start: float
    length: float

    def elapsed_us(self) -> float:
        """Return its microseconds."""
        return self.length


@dataclass
class Event:
    """What ``torch.profiler.profile.events()`` lists: of the device, or of the host."""

    name: str
    start: float
    length: float
    device_type: str = "DeviceType.CUDA"
    is_user_annotation: bool = False
    time_range: Span = field(init=False)

    def __post_init__(self) -> None:
        self.time_range = Span(self.start, self.length)


def test_kernels_are_summed_call_by_call() -> None:
    calls = [
        Event(n, 10.0 * i + place, 2.0 + i + place)
        for i in range(3)
        for place, n in enumerate(("fill", "gemm"))
    ]
    sums, names = kernel_sums(calls[::-1], 3)
    assert sums == [5.0, 7.0, 9.0]
    assert names == ("gemm", "fill")


def test_events_of_the_host_and_marked_ranges_are_no_kernels() -> None:
    events = [
        Event("cudaLaunchKernel", 0.0, 5.0, "DeviceType.CPU"),
        Event("step", 0.0, 50.0, is_user_annotation=True),
        Event("gemm", 1.0, 3.0),
    ]
    assert kernel_sums(events, 1) == ([3.0], ("gemm",))


def test_a_profile_that_lacks_a_kernel_is_not_used() -> None:
    assert kernel_sums([Event("gemm", float(i), 3.0) for i in range(4)], 5) == ([], ())
    assert kernel_sums([], 5) == ([], ())


def test_torchs_events_have_what_is_read_of_them() -> None:
    import torch
    from torch.autograd.profiler_util import FunctionEvent

    event = FunctionEvent(
        0, "gemm", 0, 1.0, 4.0, device_type=torch.autograd.DeviceType.CUDA, use_device="cuda"
    )
    assert kernel_sums([event], 1) == ([3.0], ("gemm",))
    assert kernel_sums([FunctionEvent(0, "launch", 0, 1.0, 4.0)], 1) == ([], ())


def test_a_long_call_is_made_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer, "MAX_SECONDS", 0.05)
    found = measure_call(WALL, "cpu", lambda: time.sleep(0.01), runs=25)
    assert MIN_CALLS <= found.runs <= 5
    assert 1e4 <= found.fastest <= found.op


def test_a_profile_that_lost_one_call_of_five_is_not_used() -> None:
    lost = [Event(f"k{i % 5}", float(i), 1.0) for i in range(4 * 5)]
    assert kernel_sums(lost, 5) == ([], ())


def test_the_profilers_schedule_keeps_what_follows_its_warm_up() -> None:
    """The way a GPU is profiled, on the host's activity, which is all that is here."""
    import torch

    kinds = torch.profiler.ProfilerActivity
    plan = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    with torch.profiler.profile(activities=[kinds.CPU], schedule=plan) as profile:
        torch.ones(4).sin()
        profile.step()
        for _ in range(3):
            torch.ones(4).cos()
    names = [event.name for event in profile.events()]
    assert names.count("aten::cos") == 3 and "aten::sin" not in names
