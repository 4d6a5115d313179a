"""Causes of device idle time, by the concurrent work of the host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from irgraph.analyze.intervals import complement, intersection, length, union
from irgraph.capture.kineto.events.steps import TraceStep
from irgraph.capture.kineto.reading.trace import Integers
from irgraph.replay.host_times import HostTimes
from irgraph.replay.replay import Replayer
from irgraph.schedule.intervals import CAUSES
from irgraph.schedule.timeline import Timeline

US = 1000


def idle_causes(
    replayers: Sequence[Replayer],
) -> tuple[dict[str, float], tuple[Timeline | None, ...]]:
    """Return microseconds per step without device work, by the concurrent work of the host.

    The second result is the replay of each trace's last typical step, ``None`` if it has none. The
    host's time is split by replaying each step with measured times. If several causes coincide,
    the first of the order T4, T2, T5, T3, loader, sync, T1 counts.
    """
    time_by_cause: dict[str, float] = defaultdict(float)
    steps = 0
    last_timelines: list[Timeline | None] = []
    for replayer in replayers:
        last_timelines.append(None)
        busy_intervals = union(replayer.work.start, replayer.work.end)
        for step in replayer.typical_steps:
            steps += 1
            last_timelines[-1] = timeline = replayer.replay(step, HostTimes()).timeline
            for cause, time in _causes_of_step(timeline, step, busy_intervals).items():
                time_by_cause[cause] += time
    order = sorted(time_by_cause, key=lambda cause: -time_by_cause[cause])
    return {cause: time_by_cause[cause] / max(1, steps) for cause in order}, tuple(last_timelines)


def _causes_of_step(
    timeline: Timeline, step: TraceStep, busy_intervals: Integers
) -> dict[str, float]:
    first = np.searchsorted(busy_intervals[:, 1], step.start, side="right")
    busy_within = busy_intervals[first : np.searchsorted(busy_intervals[:, 0], step.end)]
    unexplained = complement(busy_within, step.start, step.end)
    columns = timeline.columns
    hosts = [number for number, r in enumerate(timeline.resources) if r.kind == "host"]
    on_host = np.isin(columns.tasks.resource, hosts)
    starts, ends = (step.start + np.rint(t * US).astype("i8") for t in (columns.start, columns.end))
    result: dict[str, float] = {}
    for cause in ("T4", "T2", "T5", "T3", "loader", "sync", "T1"):
        of_cause = on_host & columns.tasks.has_cause(cause)
        cause_intervals = union(starts[of_cause], ends[of_cause])
        result[f"{cause}: {CAUSES[cause]}"] = (
            length(intersection(unexplained, cause_intervals)) / US
        )
        unexplained = intersection(unexplained, complement(cause_intervals, step.start, step.end))
    result["waiting for the device, or unexplained"] = length(unexplained) / US
    return result
