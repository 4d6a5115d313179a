"""Times one call on a torch device: the op's time, and on GPUs the kernels' own."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict, replace

from irgraph.capture.recording.clock import host_clock

Torch = Any
WARM_UP, RUNS = 5, 25
"""Calls before and during a measurement, by default."""

MIN_CALLS, MAX_SECONDS = 3, 2.0
"""Minimum calls and maximum seconds of a measurement."""

MIN_RUN_US = 50.0
"""Minimum microseconds of a timed run on a CPU; shorter calls are repeated within a run, since
reading the clock takes half a microsecond."""

PROFILED_CALLS, MAX_PROFILES = 5, 3
"""Calls under the profiler, and maximum profiles until every call shows the same kernels."""

OTHER_DATA_FACTOR, DEFAULT_L2_BYTES = 2, 2**27
"""Size of the data that evicts the L2 cache, relative to the cache; bytes of the cache if torch
does not report them."""

Sums: TypeAlias = list[float]
"""Microseconds of each call."""


class Timing(Struct, frozen=True):
    """Timing of one call, in microseconds.

    Attributes:
        op: median time of the op by the host's clock or by device events, launch included.
        spread: half the distance between the 5th and 95th percentile of ``op``.
        kernel: median summed time of its kernels, without launches; ``None`` if the device has no
            kernels to profile (``cpu``).
        kernel_spread: half the distance between the same percentiles of ``kernel``.
        cold: ``kernel`` if other data filled the L2 cache before each call.
        kernels: names of the kernels, longest first.
        runs: number of timed calls.
        fastest: minimum time of the op.
    """

    op: float
    spread: float
    kernel: float | None = None
    kernel_spread: float | None = None
    cold: float | None = None
    kernels: tuple[str, ...] = ()
    runs: int = RUNS
    fastest: float = 0.0

    def as_row(self) -> dict[str, Any]:
        """Return the fields as plain values; names of times have the suffix ``_us``."""
        plain = ("kernels", "runs")
        return {n if n in plain else f"{n}_us": value for n, value in asdict(self).items()}


def measure_call(torch: Torch, device: str, call: Callable[[], object], runs: int = RUNS) -> Timing:
    """Return the timing of a call after a warm-up; long calls are repeated less often.

    On a GPU every run is timed with device events on an idle stream. The kernels' own times come
    from the profiler in separate runs, so that neither measurement disturbs the other. The data of
    a call is cached as far as it fits, since the previous call read it as well.
    """
    on_gpu = device.startswith("cuda")
    run: Callable[[], float] = (
        (lambda: _event_run(torch, call)) if on_gpu else (lambda: _host_run(torch, call))
    )
    first = min(run(), run())
    if not on_gpu and first < MIN_RUN_US:
        calls_per_run = round(MIN_RUN_US / max(first, 1.0)) + 1
        run = lambda: _host_run(torch, call, calls_per_run)  # noqa: E731
    max_calls = int(MAX_SECONDS * 1e6 / max(first, 1.0))
    runs = max(min(runs, max_calls), MIN_CALLS)
    for _ in range(min(WARM_UP, max_calls)):
        call()
    return _timing(torch, on_gpu, call, [run() for _ in range(runs)])


def _timing(
    torch: Torch, on_gpu: bool, call: Callable[[], object], times: Sequence[float]
) -> Timing:
    """Return the timing of a call from its runs, with its kernels from the profiler."""
    timing = Timing(
        statistics.median(times), _spread(times), runs=len(times), fastest=min(times, default=0.0)
    )
    sums, cold, names = _profiled(torch, call) if on_gpu else ([], [], ())
    if not sums:
        return timing
    kernel, spread = statistics.median(sums), _spread(sums)
    cold_time = statistics.median(cold) if cold else None
    return replace(timing, kernel=kernel, kernel_spread=spread, cold=cold_time, kernels=names)


def measure_by_turns(
    torch: Torch, device: str, calls: Sequence[Callable[[], object]], runs: int = RUNS
) -> list[Timing]:
    """Return the timing of each call; every round runs each call once.

    Each call therefore finds its code and its data in the caches as the other calls left them, as
    in a step.
    """
    on_gpu = device.startswith("cuda")
    run = _event_run if on_gpu else _host_run
    clock = 0.0 if on_gpu else min(_host_run(torch, lambda: None) for _ in range(WARM_UP * RUNS))
    for call in calls:
        call()
    rounds = [[run(torch, call) - clock for call in calls] for _ in range(runs)]
    times = zip(*rounds, strict=True)
    return [_timing(torch, on_gpu, c, t) for c, t in zip(calls, times, strict=True)]


def _host_run(torch: Torch, call: Callable[[], object], calls: int = 1) -> float:
    clock = host_clock(torch)
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / 1e3 / calls


def _event_run(torch: Torch, call: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _profiled(torch: Torch, call: Callable[[], object]) -> tuple[Sums, Sums, tuple[str, ...]]:
    """Return the summed device time of each profiled call, warm and cold, and the kernels.

    Kernels can be missing at the start of a profile (pytorch/pytorch#192021), and without the
    host's activity (meta-pytorch/tritonbench#401). Both activities are therefore recorded after a
    warm-up of the profiler, and again until all calls show the same kernels.
    """
    kinds = torch.profiler.ProfilerActivity
    other = _other_data(torch)
    for _ in range(MAX_PROFILES):
        plan = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
        with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA], schedule=plan) as profile:
            call()
            torch.cuda.synchronize()
            profile.step()
            for _ in range(PROFILED_CALLS):
                call()
            for _ in range(PROFILED_CALLS):
                other.zero_()
                call()
            torch.cuda.synchronize()
        warm, cold = warm_and_cold(device_work(profile.events()), PROFILED_CALLS)
        sums, names = kernel_sums(warm, PROFILED_CALLS)
        if sums:
            return sums, kernel_sums(cold, PROFILED_CALLS)[0], names
    return [], [], ()


def _other_data(torch: Torch) -> Any:  # noqa: ANN401  (a tensor)
    """Return a tensor that evicts everything else from the L2 cache when it is written."""
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    size = OTHER_DATA_FACTOR * (getattr(card, "L2_cache_size", 0) or DEFAULT_L2_BYTES)
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def device_work(events: Iterable[Any]) -> list[Any]:
    """Return the kernels and copies among a profile's events, in order of time.

    Events of the host, and ranges marked by the program or the profiler, are excluded.
    """
    work = [
        e
        for e in events
        if str(e.device_type).endswith("CUDA") and not getattr(e, "is_user_annotation", False)
    ]
    return sorted(work, key=lambda e: e.time_range.start)


def warm_and_cold(work: Sequence[Any], calls: int) -> tuple[list[Any], list[Any]]:
    """Return the device work of ``calls`` warm calls, and of as many on a cold cache.

    Before each cold call one kernel wrote other data; it is excluded. Both lists are empty if the
    work cannot be divided into equal calls.
    """
    kernels_per_call, remainder = divmod(len(work) - calls, 2 * calls)
    if remainder or kernels_per_call < 1:
        return [], []
    cold = work[calls * kernels_per_call :]
    return list(work[: calls * kernels_per_call]), [
        e for i, e in enumerate(cold) if i % (kernels_per_call + 1)
    ]


def kernel_sums(events: Iterable[Any], calls: int) -> tuple[Sums, tuple[str, ...]]:
    """Return the microseconds of each call's device work, and the names of the kernels.

    Both are empty if the calls do not show the same kernels.
    """
    work = device_work(events)
    counts = Counter(str(e.name) for e in work)
    if not work or any(count % calls for count in counts.values()):
        return [], ()
    kernels_per_call = len(work) // calls
    durations = [float(e.time_range.elapsed_us()) for e in work]
    total = dict.fromkeys(counts, 0.0)
    for event, microseconds in zip(work, durations, strict=True):
        total[str(event.name)] += microseconds
    sums = sorted(
        sum(durations[i * kernels_per_call : (i + 1) * kernels_per_call]) for i in range(calls)
    )
    return sums, tuple(sorted(total, key=lambda name: -total[name]))


def _spread(times: Sequence[float]) -> float:
    percentiles = statistics.quantiles(times, n=20) if len(times) > 1 else [times[0]] * 19
    return (percentiles[-1] - percentiles[0]) / 2
