"""Step times if an operation or a group were faster, simulated again (what-if analysis)."""

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

BATCH_OPS = 64
"""Operations that are tried in one batch."""

MAX_CELLS = 4_000_000
"""Maximum of tasks times what-ifs in one pass: bounds its memory (8 bytes each)."""


class Sensitivity(Struct, frozen=True):
    """The step time if something were faster. Times in microseconds.

    Attributes:
        kind: ``op``, ``family`` or ``cause``.
        name: the operation's name, the family's, or the cause's.
        module: of the operation, its module.
        origin: of the operation, where it came from.
        share: its time on the critical path.
        step_time: the step's time with all times of it divided by the factor.
        saved: the original step time less ``step_time``.
    """

    kind: str
    name: str
    step_time: float
    saved: float
    share: float = 0.0
    module: str = ""
    origin: str = ""


def sensitivity(
    timeline: Timeline, *, factor: float = 2.0, top: int = 10
) -> tuple[list[Sensitivity], list[Sensitivity]]:
    """Return operations and groups that would shorten the step if ``factor`` times faster.

    All times of an operation, on host and device, are divided; infinity removes them. Only
    operations on the critical path can shorten the step, and none by more than its time there:
    they are tried longest first, until none of the rest could be among the ``top``. Groups are
    families of kernels, T1 to T5, launch latency, gaps and returns from waits. Both come most saved
    first.
    """
    columns = timeline.columns
    tasks, lengths = columns.tasks, columns.end - columns.start
    chain = longest_chain(tasks, columns.end)
    groups = _groups(columns)
    masks = [mask for _, _, mask in groups]
    on_path = np.zeros(len(columns.ops))
    ops_on_chain = chain[tasks.op[chain] >= 0]
    np.add.at(on_path, tasks.op[ops_on_chain], lengths[ops_on_chain])
    candidates = np.argsort(-on_path, kind="stable")[: int((on_path > 0).sum())]
    op_results: list[Sensitivity] = []
    steps: list[float] = []
    for first in range(0, max(len(candidates), 1), BATCH_OPS):
        batch = candidates[first : first + BATCH_OPS].tolist()
        best = sorted((s.saved for s in op_results), reverse=True)[:top]
        if len(best) == top and on_path[batch[0]] * (1 - 1 / factor) <= best[-1]:
            break
        # the groups come along with the first operations: a pass costs little more for them
        batch_masks = [*(masks if not first else ()), *(tasks.op == op for op in batch)]
        times = _step_times(columns, batch_masks, factor)
        steps = steps or times[: len(masks)]
        pairs = zip(batch, times[len(batch_masks) - len(batch) :], strict=True)
        op_results += [_op_sensitivity(columns, op, time, timeline, on_path) for op, time in pairs]
    group_results = [
        Sensitivity(kind, name, t, timeline.step_time - t, float(lengths[chain][m[chain]].sum()))
        for (kind, name, m), t in zip(groups, steps, strict=True)
    ]
    return sorted(op_results, key=lambda s: -s.saved)[:top], sorted(
        group_results, key=lambda s: -s.saved
    )


def _groups(columns: Intervals) -> list[tuple[str, str, NDArray[np.bool_]]]:
    """Return kind, name and tasks of each cause and each family."""
    tasks = columns.tasks
    families: dict[str, list[int]] = {}
    for number, kernel in enumerate(columns.kernels):
        families.setdefault(kernel.family, []).append(number)
    work = tasks.has_cause("kernel")
    groups = [("cause", name, tasks.has_cause(name)) for name in LABELS if name in tasks.causes]
    return groups + [
        ("family", name, work & np.isin(tasks.kernel, numbers))
        for name, numbers in families.items()
    ]


def _op_sensitivity(
    columns: Intervals, op: int, time: float, timeline: Timeline, on_path: Floats
) -> Sensitivity:
    operation = columns.ops[op]
    saved = timeline.step_time - time
    return Sensitivity(
        "op", operation.name, time, saved, float(on_path[op]), operation.module, operation.origin
    )


def _step_times(
    columns: Intervals, masks: Sequence[NDArray[np.bool_]], factor: float
) -> list[float]:
    """Return the step's time with each set of tasks made faster."""
    tasks = columns.tasks
    if tasks.shared_pools:
        return [
            float(run_sharing(tasks, np.where(m, tasks.length / factor, tasks.length))[1].max())
            for m in masks
        ]
    step_times: list[float] = []
    width = max(1, MAX_CELLS // max(len(tasks), 1))
    for first in range(0, len(masks), width):
        step_times += _batch_step_times(tasks, masks[first : first + width], factor)
    return step_times


def _batch_step_times(
    tasks: Tasks, masks: Sequence[NDArray[np.bool_]], factor: float
) -> list[float]:
    lengths = np.where(np.stack(masks, axis=1), 1.0 / factor, 1.0) * tasks.length[:, None]
    steps: list[float] = last_ends(tasks, lengths, len(masks)).tolist()
    return steps
