"""Step times if an operation or a group were faster, simulated again (what-if analysis)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from irgraph.schedule.intervals import OVERHEADS
from irgraph.schedule.op_savings import op_savings
from irgraph.schedule.sharing import run_sharing
from irgraph.schedule.tasks import Floats, Ints, Tasks, last_ends, longest_chain
from irgraph.schedule.timeline import Intervals, Timeline

CAUSES = (*OVERHEADS, "loader", "latency", "gap", "sync")
"""Causes that a what-if may speed up."""

BATCH_OPS = 64
"""Operations that are tried in one batch."""

BLOCK_TASKS = 512
"""Tasks whose lengths are in memory at a time, for all variants of a batch."""

MAX_SHARED_TASKS = 1_000_000
"""Maximum number of tasks in the simulations of a step whose resources share hardware. There
each variant takes one simulation, event by event."""

MIN_SHARED_OPS = 10
"""Minimum number of operations that are tried in a step whose resources share hardware."""

ROUNDING = 1e-9
"""Share of a step's time below which savings are equal."""


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
    operations on the critical path can shorten the step: they are tried in the order of
    ``op_savings`` until none of the rest could be among the ``top``. Where resources share
    hardware, those savings are estimates, and of a step of very many tasks only the first
    operations are tried. Groups are families of kernels, T1 to T5, launch latency, gaps and
    returns from waits. Both come most saved first.
    """
    columns = timeline.columns
    chain = longest_chain(columns.tasks, columns.end)
    groups = _groups(columns)
    group_times = _step_times(columns, [mask for _, _, mask in groups], factor)
    lengths = columns.end - columns.start
    group_results = [
        Sensitivity(kind, name, t, timeline.step_time - t, float(lengths[chain][m[chain]].sum()))
        for (kind, name, m), t in zip(groups, group_times, strict=True)
    ]
    op_results = _ops(timeline, _Candidates(columns, chain, factor), factor, top)
    return sorted(op_results, key=lambda s: -s.saved)[:top], sorted(
        group_results, key=lambda s: -s.saved
    )


class _Candidates:
    """Operations on the critical path, largest savings first.

    Attributes:
        on_path: time of each operation on the path.
        ops: the operations to try, in order.
        bounds: by how much each of them shortens the step at most.
    """

    def __init__(self, columns: Intervals, chain: Ints, factor: float) -> None:
        tasks, lengths = columns.tasks, columns.end - columns.start
        self.on_path = np.zeros(len(columns.ops))
        ops_on_chain = chain[tasks.op[chain] >= 0]
        np.add.at(self.on_path, tasks.op[ops_on_chain], lengths[ops_on_chain])
        longest = np.argsort(-self.on_path, kind="stable")
        ops = longest[: int((self.on_path > 0).sum())]
        bounds = self.on_path[ops] * (1 - 1 / factor)
        savings = np.minimum(op_savings(tasks, lengths, columns.end, ops, factor), bounds)
        unit = ROUNDING * float(columns.end.max(initial=0.0)) or 1.0
        order = np.argsort(-np.round(savings / unit), kind="stable")
        if tasks.shared_pools:
            order = order[: max(MIN_SHARED_OPS, MAX_SHARED_TASKS // len(tasks))]
        else:
            bounds = savings + unit
        self.ops, self.bounds = ops[order], bounds[order]

    def batches(self) -> Iterator[tuple[list[int], float]]:
        """Yield batches of operations, each with the bound of these and of all later ones."""
        for first in range(0, len(self.ops), BATCH_OPS):
            batch = self.ops[first : first + BATCH_OPS].tolist()
            yield batch, float(self.bounds[first:].max())


def _ops(timeline: Timeline, candidates: _Candidates, factor: float, top: int) -> list[Sensitivity]:
    """Return operations of which the ``top`` save most."""
    columns = timeline.columns
    results: list[Sensitivity] = []
    for batch, bound in candidates.batches():
        best = sorted((s.saved for s in results), reverse=True)[:top]
        if len(best) == top and bound <= best[-1] + ROUNDING * timeline.step_time * 2:
            break
        times = _op_step_times(columns, batch, factor)
        results += [
            _op_sensitivity(columns, op, time, timeline, candidates.on_path)
            for op, time in zip(batch, times, strict=True)
        ]
    return results


def _groups(columns: Intervals) -> list[tuple[str, str, NDArray[np.bool_]]]:
    """Return kind, name and tasks of each cause and each family."""
    tasks = columns.tasks
    families: dict[str, list[int]] = {}
    for number, kernel in enumerate(columns.kernels):
        families.setdefault(kernel.family, []).append(number)
    work = tasks.has_cause("kernel")
    groups = [("cause", name, tasks.has_cause(name)) for name in CAUSES if name in tasks.causes]
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
    if columns.tasks.shared_pools:
        return [_shared_step_time(columns.tasks, mask, factor) for mask in masks]
    return _batch_step_times(
        columns.tasks, lambda block: np.stack([m[block] for m in masks], 1), len(masks), factor
    )


def _op_step_times(columns: Intervals, ops: Sequence[int], factor: float) -> list[float]:
    """Return the step's time with each operation made faster."""
    tasks = columns.tasks
    if tasks.shared_pools:
        return [_shared_step_time(tasks, tasks.op == op, factor) for op in ops]
    numbers = np.array(ops)
    return _batch_step_times(
        tasks, lambda block: tasks.op[block, None] == numbers, len(ops), factor
    )


def _shared_step_time(tasks: Tasks, mask: NDArray[np.bool_], factor: float) -> float:
    lengths = np.where(mask, tasks.length / factor, tasks.length)
    return float(run_sharing(tasks, lengths)[1].max())


def _batch_step_times(
    tasks: Tasks, mask: Callable[[slice], NDArray[np.bool_]], sets: int, factor: float
) -> list[float]:
    """Return the step's time for ``sets`` sets of tasks; ``mask`` gives them for some tasks."""
    if not sets:
        return []

    def lengths() -> Iterator[Floats]:
        for first in range(0, len(tasks), BLOCK_TASKS):
            block = slice(first, first + BLOCK_TASKS)
            yield from np.where(mask(block), 1.0 / factor, 1.0) * tasks.length[block, None]

    steps: list[float] = last_ends(tasks, lengths(), sets).tolist()
    return steps
