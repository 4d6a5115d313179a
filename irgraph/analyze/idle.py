"""Causes of device idle time: what the host did meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from irgraph.analyze.intervals import complement, intersection, length, union
from irgraph.capture.kineto.events.steps import TraceStep
from irgraph.capture.kineto.reading.trace import Integers
from irgraph.replay.host_times import HostTimes
from irgraph.replay.replay import Replayer
from irgraph.schedule.timeline import CAUSES, Timeline

US = 1000


def idle_causes(
    replayers: Sequence[Replayer],
) -> tuple[dict[str, float], tuple[Timeline | None, ...]]:
    """Return microseconds per step without device work, by what the host did meanwhile.

    With them comes the replay of each trace's last usual step, ``None`` where it has none. The
    host's time is split by replaying each step with measured times. Where two threads are busy
    at once, the one whose name sorts first counts.
    """
    found: dict[str, float] = defaultdict(float)
    steps = 0
    last: list[Timeline | None] = []
    for one in replayers:
        last.append(None)
        busy = union(one.work.start, one.work.end)
        for step in one.typical_steps:
            steps += 1
            last[-1] = timeline = one.replay(step, HostTimes()).timeline
            for cause, time in _of_step(timeline, step, busy).items():
                found[cause] += time
    order = sorted(found, key=lambda cause: -found[cause])
    return {cause: found[cause] / max(1, steps) for cause in order}, tuple(last)


def _of_step(timeline: Timeline, step: TraceStep, busy: Integers) -> dict[str, float]:
    first = np.searchsorted(busy[:, 1], step.start, side="right")
    inside = busy[first : np.searchsorted(busy[:, 0], step.end)]
    left = complement(inside, step.start, step.end)
    columns = timeline.columns
    hosts = [number for number, r in enumerate(timeline.resources) if r.kind == "host"]
    on_host = np.isin(columns.tasks.resource, hosts)
    starts, ends = (step.start + np.rint(t * US).astype("i8") for t in (columns.start, columns.end))
    found: dict[str, float] = {}
    for cause in ("T4", "T2", "T5", "T3", "loader", "sync", "T1"):
        of_cause = on_host & columns.tasks.has_cause(cause)
        mine = union(starts[of_cause], ends[of_cause])
        found[f"{cause}: {CAUSES[cause]}"] = length(intersection(left, mine)) / US
        left = intersection(left, complement(mine, step.start, step.end))
    found["waiting for the device, or unexplained"] = length(left) / US
    return found
