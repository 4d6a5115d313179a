"""Recorded steps replayed: with the mean overheads of each trace, and with those of its fellows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from costmodels.evaluate.comparison import Point, Series
from costmodels.hosts.from_traces import published_tree
from irgraph.overheads.samples import Samples
from irgraph.replay.replay import Lengths, Replayer, replayer

TRACES = (
    "dlrm_8xV100/kineto_rank{}.json.gz",
    "dlrm_4xV100_overlap/kineto_rank{}.json.gz",
    "resnet50_V100/kineto_workers{}.json.gz",
    "mlp_RTX2080Ti/kineto{}.json.gz",
    "resnet18_RTX2080Ti/kineto{}.json.gz",
    "formats/kineto_resnet50_ddp_A100{}.json.gz",
)
"""Traces of training with complete steps; ``{}`` stands for a rank, a number of loaders, or
nothing. Those that one pattern finds are fellows: one program, on one machine."""

NOTES = (
    "A trace of one step replayed with its own mean overheads says that what waits for what is "
    "right, and little about overheads. With those of its fellows alone no time of the host is "
    "its own: the eight ranks did the same at the same time; the four that overlap wait for one "
    "another, and the two of ResNet-50 loaded their data with no other process and with four.",
)


def replays(folder: Path) -> tuple[Series, Series]:
    """Return replays with each trace's own mean overheads, and with those of its fellows.

    Times are means over the usual steps, in milliseconds. ``folder`` holds the measurements.
    """
    own: list[Point] = []
    others: list[Point] = []
    for fellows in trace_groups(folder):
        replayers = {_name(path): replayer(published_tree(path)) for path in fellows}
        samples = {name: one.samples() for name, one in replayers.items()}
        for name, one in replayers.items():
            own.append(_point(name, one, samples[name]))
            if len(fellows) > 1:
                others.append(_point(name, one, _joined(samples, name)))
    return (
        Series("replays of traces, mean overheads of each", own),
        Series("replays of traces, mean overheads of its fellows alone", others),
    )


def trace_groups(folder: Path) -> Iterator[list[Path]]:
    """Yield the traces that are there of each pattern in ``TRACES``."""
    for pattern in TRACES:
        found = sorted((folder / "traces").glob(pattern.format("*")))
        if found:
            yield found


def _name(path: Path) -> str:
    return f"{path.parent.name} {path.name.removesuffix('.json.gz')}"


def _point(name: str, one: Replayer, samples: Samples) -> Point:
    steps = one.replay_all(Lengths(samples))
    times = [(step.measured, step.simulated) for step in steps if not step.left_out]
    measured, simulated = (sum(t) / len(t) / 1000.0 for t in zip(*times, strict=True))
    return Point(name, measured, simulated)


def _joined(samples: Mapping[str, Samples], without: str) -> Samples:
    """Return the samples of all traces but one."""
    whole = Samples()
    for name, part in samples.items():
        for sample in (s for group in part.by_key.values() for s in group):
            if name != without:
                whole.add(sample)
    return whole
