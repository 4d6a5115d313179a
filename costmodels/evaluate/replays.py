"""Replays of recorded steps with the mean overheads of their own trace, and of its fellows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations
from pathlib import Path
from statistics import median

from costmodels.evaluate.comparison import Point, Series
from costmodels.hosts.from_traces import published_tree
from irgraph.overheads.samples import Samples
from irgraph.replay.host_times import HostTimes, launch_ratio
from irgraph.replay.replay import Replayed, Replayer, build_replayer

TRACES = (
    "dlrm_8xV100/kineto_rank{}.json.gz",
    "dlrm_4xV100_overlap/kineto_rank{}.json.gz",
    "resnet50_V100/kineto_workers{}.json.gz",
    "mlp_RTX2080Ti/kineto{}.json.gz",
    "resnet18_RTX2080Ti/kineto{}.json.gz",
    "formats/kineto_resnet50_ddp_A100{}.json.gz",
)
"""Traces of training with complete steps; ``{}`` matches a rank, a number of loaders, or nothing.
Traces that match one pattern are fellows: one program, on one machine."""

MACHINES = {
    "dlrm_8xV100": ("dlrm_8xV100/kineto*",),
    "dlrm_4xV100_overlap": ("dlrm_4xV100_overlap/kineto*",),
    "resnet50_V100": ("resnet50_V100/kineto*",),
    "RTX2080Ti": ("mlp_RTX2080Ti/kineto*", "resnet18_RTX2080Ti/kineto*"),
}
"""Patterns of the traces of each machine: of one program each, except for the last machine, where
two programs were recorded within a quarter of an hour."""

NOTES = (
    "A trace of one step replayed with its own mean overheads says that what waits for what is "
    "right, and little about overheads. With those of its fellows alone no time of the host is "
    "its own: the eight ranks did the same at the same time; the four that overlap wait for one "
    "another, and the two of ResNet-50 loaded their data with no other process and with four.",
)


def replays(folder: Path) -> tuple[Series, Series]:
    """Return replays with each trace's own mean overheads, and with its fellows' overheads.

    Times are means over the typical steps, in milliseconds. ``folder`` is the folder of
    measurements.
    """
    own_points: list[Point] = []
    fellow_points: list[Point] = []
    for fellows in trace_groups(folder):
        replayers = {_name(path): build_replayer(published_tree(path)) for path in fellows}
        samples = {name: replayer.samples() for name, replayer in replayers.items()}
        for name, replayer in replayers.items():
            own_points.append(_point(name, replayer, samples[name]))
            if len(fellows) > 1:
                fellow_points.append(_point(name, replayer, _samples_without(samples, name)))
    return (
        Series("replays of traces, mean overheads of each", own_points),
        Series("replays of traces, mean overheads of its fellows alone", fellow_points),
    )


def trace_groups(folder: Path) -> Iterator[list[Path]]:
    """Yield the existing traces of each pattern in ``TRACES``."""
    for pattern in TRACES:
        paths = sorted((folder / "traces").glob(pattern.format("*")))
        if paths:
            yield paths


def replays_with_other_traces(folder: Path) -> dict[str, list[Replayed]]:
    """Return replays of each trace's typical steps with each other trace's host times, by machine.

    Host times are scaled by launch times, as in ``irgraph replay --overheads TRACE``.
    """
    steps_by_machine: dict[str, list[Replayed]] = {}
    for machine, patterns in MACHINES.items():
        paths = [path for p in patterns for path in sorted((folder / "traces").glob(p))]
        traces = [build_replayer(published_tree(path)) for path in paths]
        steps_by_machine[machine] = []
        for target, source in permutations([(trace, trace.samples()) for trace in traces], 2):
            scale = launch_ratio(target[1], source[1])
            host_times = HostTimes(source[1], scale=scale, other=True)
            steps = (target[0].replay(step, host_times) for step in target[0].typical_steps)
            steps_by_machine[machine] += [step.without_timeline() for step in steps]
    return steps_by_machine


def coverage_lines(steps_by_machine: Mapping[str, Iterable[Replayed]]) -> Iterator[str]:
    """Yield a line on the coverage of measured steps by intervals, for each machine and for all."""
    rows = {machine: list(steps) for machine, steps in steps_by_machine.items()}
    all_steps = [step for steps in rows.values() for step in steps]
    yield (
        "Replayed with the host times of one other trace of the same machine; measured steps "
        "within the 90 % interval, and its median half width in parts of the simulated step:"
    )
    for machine, steps in {**rows, "all": all_steps}.items():
        inside = sum(step.within for step in steps)
        halves = [half_width(step) for step in steps]
        share = inside / len(steps)
        yield f"{machine}: {inside} of {len(steps)} ({share:.0%}), {median(halves):.0%}"


def half_width(step: Replayed) -> float:
    """Return the half width of a step's interval, as a share of the simulated time."""
    low, high = step.interval or (0.0, 0.0)
    return (high - low) / 2 / step.simulated


def _name(path: Path) -> str:
    return f"{path.parent.name} {path.name.removesuffix('.json.gz')}"


def _point(name: str, replayer: Replayer, samples: Samples) -> Point:
    steps = replayer.replay_all(HostTimes(samples))
    times = [(step.measured, step.simulated) for step in steps if not step.left_out]
    measured, simulated = (sum(t) / len(t) / 1000.0 for t in zip(*times, strict=True))
    return Point(name, measured, simulated)


def _samples_without(samples: Mapping[str, Samples], without: str) -> Samples:
    """Return the samples of all traces except for ``without``."""
    result = Samples()
    for name, part in samples.items():
        for sample in (s for group in part.by_key.values() for s in group):
            if name != without:
                result.add(sample)
    return result
