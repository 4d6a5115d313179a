"""What-if analysis: the step time if some of it were faster, simulated again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from irgraph.schedule.sharing import run_sharing
from irgraph.schedule.tasks import Floats, Tasks, last_ends, longest_chain
from irgraph.schedule.timeline import Intervals, Timeline

LABELS = {
    "T1": "T1 of all operations",
    "T2": "T2 of all operations",
    "T3": "T3 of all operations",
    "T4": "T4: time of all launches in the driver",
    "T5": "T5 of all operations",
    "latency": "launch latency",
    "gap": "gaps between kernels",
    "sync": "returning from waits",
}
"""Causes that a what-if may speed up, and their names in reports."""

AT_ONCE = 64
"""Maximum what-ifs of one pass over the tasks."""

CELLS = 4_000_000
"""Maximum of tasks times what-ifs in one pass: bounds its memory (8 bytes each)."""


class Sensitivity(Struct, frozen=True):
    """The step time if something were faster. Times in microseconds.

    Attributes:
        kind: ``op``, ``family`` or ``cause``.
        name: the operation's name, the family's, or the cause's.
        module: of the operation, its module.
        origin: of the operation, where it came from.
        share: of it on the critical path, microseconds.
        step_time: with all its times divided by the factor.
        saved: the step's time less that.
    """

    kind: str
    name: str
    step_time: float
    saved: float
    share: float = 0.0
    module: str = ""
    origin: str = ""


def sensitivity(timeline: Timeline, *, factor: float = 2.0, top: int = 10) -> list[Sensitivity]:
    """Return the operations that would shorten the step most if ``factor`` times faster.

    All times of an operation, on host and device, are divided; infinity removes them. Only
    operations on the critical path can shorten the step, and none by more than its time there:
    they are tried longest first, until none of the rest could be among the ``top``.
    """
    columns = timeline.columns
    on_path = _time_on_path(columns)
    candidates = np.argsort(-on_path, kind="stable")[: int((on_path > 0).sum())]
    found: list[Sensitivity] = []
    for at in range(0, len(candidates), AT_ONCE):
        batch = candidates[at : at + AT_ONCE]
        best = sorted((s.saved for s in found), reverse=True)[:top]
        if len(best) == top and on_path[batch[0]] * (1 - 1 / factor) <= best[-1]:
            break
        steps = _steps(columns, [columns.tasks.op == op for op in batch], factor)
        pairs = zip(batch.tolist(), steps, strict=True)
        found += [_of_op(columns, op, t, timeline, on_path) for op, t in pairs]
    return sorted(found, key=lambda s: -s.saved)[:top]


def sensitivity_of_groups(timeline: Timeline, *, factor: float = 2.0) -> list[Sensitivity]:
    """Return the step time with a whole family, or a cause, ``factor`` times faster.

    Families of kernels, T1 to T5, launch latency, gaps and returns from waits, most saved first.
    """
    columns = timeline.columns
    tasks = columns.tasks
    families: dict[str, list[int]] = {}
    for number, kernel in enumerate(columns.kernels):
        families.setdefault(kernel.family, []).append(number)
    work = tasks.having("kernel")
    groups = [("cause", name, tasks.having(name)) for name in LABELS if name in tasks.causes]
    groups += [
        ("family", name, work & np.isin(tasks.kernel, numbers))
        for name, numbers in families.items()
    ]
    steps = _steps(columns, [mask for _, _, mask in groups], factor)
    step = timeline.step_time
    chain = longest_chain(tasks, columns.end)
    lengths = columns.end - columns.start
    found = [
        Sensitivity(kind, name, time, step - time, float(lengths[chain][mask[chain]].sum()))
        for (kind, name, mask), time in zip(groups, steps, strict=True)
    ]
    return sorted(found, key=lambda s: -s.saved)


def _time_on_path(columns: Intervals) -> Floats:
    chain = longest_chain(columns.tasks, columns.end)
    chain = chain[columns.tasks.op[chain] >= 0]
    lengths = (columns.end - columns.start)[chain]
    times = np.zeros(len(columns.ops))
    np.add.at(times, columns.tasks.op[chain], lengths)
    return times


def _of_op(
    columns: Intervals, op: int, time: float, timeline: Timeline, on_path: Floats
) -> Sensitivity:
    known = columns.ops[op]
    saved = timeline.step_time - time
    return Sensitivity(
        "op", known.name, time, saved, float(on_path[op]), known.module, known.origin
    )


def _steps(columns: Intervals, masks: Sequence[NDArray[np.bool_]], factor: float) -> list[float]:
    """Return the step's time for each set of tasks that is made faster."""
    tasks = columns.tasks
    if tasks.shared_pools:
        return [
            float(run_sharing(tasks, np.where(m, tasks.length / factor, tasks.length))[1].max())
            for m in masks
        ]
    found: list[float] = []
    width = max(1, min(AT_ONCE, CELLS // max(len(tasks), 1)))
    for at in range(0, len(masks), width):
        found += _steps_at_once(tasks, masks[at : at + width], factor)
    return found


def _steps_at_once(tasks: Tasks, masks: Sequence[NDArray[np.bool_]], factor: float) -> list[float]:
    lengths = np.where(np.stack(masks, axis=1), 1.0 / factor, 1.0) * tasks.length[:, None]
    steps: list[float] = last_ends(tasks, lengths, len(masks)).tolist()
    return steps
