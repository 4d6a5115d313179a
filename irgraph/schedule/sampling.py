"""Uncertainty of a step time: Monte Carlo over the times of kernels and host overheads.

Kernels: errors are fully correlated within a family and independent between families; a
kernel's spread is half a 90 % interval of a normal distribution. Host times: every occurrence of
an operation varies by the table's standard deviation for it (log-normal), each kind of overhead as
a whole by ``TABLE_STD``, and all of them together by ``WORKLOAD_STD`` and by how much the machine
may differ from the measured one (``Host.machine_std``). Errors of a category's
figures, for operations not in the table, are common to all their occurrences.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from functools import cached_property, lru_cache
from threading import Lock

import numpy as np

from irgraph.ir.cost import Host
from irgraph.schedule.intervals import OVERHEADS
from irgraph.schedule.steps.node_graph import NodeGraph
from irgraph.schedule.steps.passes import ends_under_draws
from irgraph.schedule.steps.products import KernelSamples
from irgraph.schedule.tasks import Floats, Ints, last_ends
from irgraph.schedule.timeline import Intervals, Timeline

TABLE_STD = 0.06
"""Relative standard deviation of a host's mean overheads between workloads: of the mean T1 over the
twelve workloads of the paper's Figure 7."""

WORKLOAD_STD = 0.16
"""Relative standard deviation of all host times between workloads: of T1 and T2 of the seven models
measured in February 2022 (DLRM in three sizes, DeepFM, NCF, Inception, ResNet: 0.73 to 1.22 of what
their calls take on average), models of equal weight. No step time was looked at for it."""

NORMAL_90 = 1.6449
"""Half a 90 % interval of a normal distribution, in standard deviations."""

DEFAULT_DRAWS = 400
"""Default number of samples of a step: they give the ends of a 90 % interval to about 3 % of its
width."""


def sample_steps(
    timeline: Timeline, host: Host, *, draws: int = DEFAULT_DRAWS, jitter: bool = True
) -> Floats:
    """Return step times in microseconds under ``draws`` draws, ``float64[draws]``.

    Draws are the same for every timeline: samples of two steps may be subtracted pairwise.
    Without ``jitter`` occurrences of an operation do not vary independently, as for a mean over
    many steps. Shared resources retain the slowdown that they have at the expected times.
    """
    columns = timeline.columns
    if not len(columns):
        return np.zeros(draws)
    model = _Model(columns, host, jitter)
    return last_ends(columns.tasks, model.draw(draws), draws)


def sample_variants(
    columns: Intervals,
    host: Host,
    collapsed: NodeGraph,
    work: Ints,
    rows: Ints,
    lengths: Floats,
    spreads: Floats,
) -> Floats:
    """Return the samples of ``sample_steps`` for steps that differ only in their device work.

    The host's times are drawn and added up once for all steps, in another order than in
    ``sample_steps``, and are not ends of tasks less their starts: only the last digits differ.

    Args:
        columns: of one of the steps.
        host: its host table.
        collapsed: its tasks, folded into nodes.
        work: the tasks that are device work, ``int64[work]``.
        rows: the kernel that each of them runs, ``int64[work]``.
        lengths: duration of each kernel, microseconds, ``float64[kernels, steps]``.
        spreads: half a 90 % interval of each, microseconds, ``float64[kernels, steps]``.

    Returns:
        Step times in microseconds, ``float64[steps, draws]``.
    """
    model = _Model(columns, host, jitter=True)
    # all other properties of the tasks are the same in any of the steps
    model.length, model.spread = columns.tasks.length, np.zeros(len(columns))
    deviations, families = spreads / NORMAL_90, np.zeros(len(lengths), np.int64)
    families[rows] = model.family[work]
    fold_lengths = model.fold_lengths(DEFAULT_DRAWS, collapsed.fold_by_task, len(collapsed.folds))
    errors = np.array([_normal(f"family {name}", DEFAULT_DRAWS) for name in model.families])
    errors = errors.reshape(-1, DEFAULT_DRAWS)
    step_times = np.zeros((lengths.shape[1], DEFAULT_DRAWS))
    width = max(1, MAX_FOLD_CELLS // max(1, len(fold_lengths)))
    for first_draw in range(0, DEFAULT_DRAWS, width):
        part = slice(first_draw, first_draw + width)
        kernel_samples = KernelSamples(rows, lengths, deviations, families, errors[:, part])
        step_times[:, part] = ends_under_draws(collapsed, fold_lengths[:, part], kernel_samples)
    return step_times


def interval(samples: Floats, share: float = 0.9) -> tuple[float, float]:
    """Return the middle ``share`` of samples: its lower and its upper end."""
    low, high = intervals_of(samples[None], share)[0].tolist()
    return low, high


def intervals_of(samples: Floats, share: float = 0.9) -> Floats:
    """Return the ends of the middle ``share`` of each row of samples, ``float64[rows, 2]``."""
    positions = np.array([(1 - share) / 2, (1 + share) / 2]) * (samples.shape[1] - 1)
    ordered, below = np.sort(samples, axis=1), positions.astype(np.int64)
    low, high = ordered[:, below], ordered[:, np.minimum(below + 1, samples.shape[1] - 1)]
    ends: Floats = (high - low) * (positions - below) + low
    return ends


MAX_CELLS = 4_000_000
"""Maximum number of cached draws of each cause, 32 MB."""

MAX_FOLD_CELLS = 16_000_000
"""Maximum number of host times in one pass over the variants of a step, 128 MB."""

COMMON_ERROR_CAUSES = ("T2", "T3", "T5")
"""Causes whose figures for a category have a common error for all its operations."""

BLOCK_TASKS = 512
"""Tasks whose lengths are drawn together: few enough for a processor's cache."""


class _Model:
    """Uncertainties of a step's tasks, and draws from them."""

    def __init__(self, columns: Intervals, host: Host, jitter: bool) -> None:
        self.tasks = columns.tasks
        self.common_std = math.hypot(WORKLOAD_STD, host.machine_std)
        self.length = columns.end - columns.start
        kernels = columns.kernels
        kernel = np.array([k.spread / NORMAL_90 for k in kernels] or [0.0])
        self.spread = np.where(self.tasks.has_cause("kernel"), kernel[self.tasks.kernel], 0.0)
        families = sorted({k.family for k in kernels})
        number = np.array([families.index(k.family) for k in kernels] or [0])
        self.families = families
        self.family = number[self.tasks.kernel]
        relative, self.error_group = _host_std(columns, host)
        self.jitter = jitter
        is_random = jitter | (self.error_group >= 0)
        self.sigma = np.where(is_random, np.sqrt(np.log1p(relative**2)), 0.0)
        self.varies = np.where(self._is_host_time(), self.tasks.cause, -1)

    def _is_host_time(self) -> np.ndarray:
        """Return whether each task is the host's own time, even if a table gives no deviation."""
        causes = self.tasks.causes
        host_codes = [n for n, cause in enumerate(causes) if cause in OVERHEADS]
        is_host_time: np.ndarray = np.isin(self.tasks.cause, host_codes) & (self.length > 0.0)
        return is_host_time

    def draw(self, draws: int) -> Iterator[Floats | float]:
        """Yield the lengths of each task, ``float64[draws]``, or one number if they are equal."""
        errors = [_normal(f"family {name}", draws) for name in self.families]
        factors = [_Factors(self, cause, draws) for cause in self.tasks.causes]
        for block_start in range(0, len(self.length), BLOCK_TASKS):
            block = slice(block_start, block_start + BLOCK_TASKS)
            lengths: list[Floats | float] = self.length[block].tolist()
            for row in np.flatnonzero(self.spread[block]).tolist():
                error = self.spread[block_start + row] * errors[self.family[block_start + row]]
                lengths[row] = np.maximum(lengths[row] + error, 0.0)
            cause = self.varies[block]
            for code in set(cause[cause >= 0].tolist()):
                members = np.flatnonzero(cause == code)
                times = factors[code].draw_next(members + block_start)
                times *= self.length[members + block_start, None]
                for row, time in zip(members.tolist(), times, strict=True):
                    lengths[row] = time
            yield from lengths

    def fold_lengths(self, draws: int, fold: Ints, folds: int) -> Floats:
        """Return the lengths of ``draw`` for tasks without spread, added up by fold.

        ``float64[folds, draws]``; ``fold`` is the fold of each task, -1 for none.
        """
        factors = [_Factors(self, cause, draws) for cause in self.tasks.causes]
        fixed_tasks = np.flatnonzero((self.varies < 0) & (fold >= 0))
        lengths = np.bincount(fold[fixed_tasks], self.length[fixed_tasks], folds).astype(np.float64)
        sums = np.repeat(lengths[:, None], draws, axis=1)
        for block_start in range(0, len(self.length), BLOCK_TASKS):
            block_folds, cause = (
                fold[block_start : block_start + BLOCK_TASKS],
                self.varies[block_start : block_start + BLOCK_TASKS],
            )
            order = np.argsort(block_folds, kind="stable")
            order = order[(cause[order] >= 0) & (block_folds[order] >= 0)]
            if not len(order):
                continue
            positions, samples = np.full(len(cause), -1), np.empty((len(order), draws))
            positions[order] = np.arange(len(order))
            for code in set(cause[cause >= 0].tolist()):
                members = np.flatnonzero(cause == code)
                times = factors[code].draw_next(members + block_start)
                times *= self.length[members + block_start, None]
                samples[positions[members]] = times
            fold_indices, first = np.unique(block_folds[order], return_index=True)
            sums[fold_indices] += np.add.reduceat(samples, first)
        return sums


class _Factors:
    """Log-normal factors of one cause's host times, drawn in the order of its tasks.

    One factor is common to all tasks; each task also has its own factor with mean one, which tasks
    with a common error share.
    """

    def __init__(self, model: _Model, cause: str, draws: int) -> None:
        self.model, self.cause, self.draws = model, cause, draws
        host_error = model.common_std * _normal("host", draws)
        self.common_factor = np.exp(TABLE_STD * _normal(cause, draws) + host_error)
        self.independent = _NormalRows(_normals(f"{cause} alone", draws)) if model.jitter else None
        self.group_errors: dict[int, Floats] = {}

    def draw_next(self, tasks: np.ndarray) -> Floats:
        """Return the factors of the next tasks, ``float64[tasks, draws]``."""
        groups, sigma = self.model.error_group[tasks], self.model.sigma[tasks, None]
        if self.independent is None:
            factors = np.zeros((len(tasks), self.draws))
        else:
            factors = self.independent.next_rows(len(tasks)) * sigma
        for group in set(groups[groups >= 0].tolist()):
            if group not in self.group_errors:
                self.group_errors[group] = _normal(f"{self.cause} {group}", self.draws)
            members = groups == group
            factors[members] = self.group_errors[group] * sigma[members]
        # A log-normal factor with mean one: exp(N(-s^2 / 2, s^2)).
        factors -= sigma**2 / 2
        np.exp(factors, out=factors)
        factors *= self.common_factor
        return factors


def _host_std(columns: Intervals, host: Host) -> tuple[Floats, np.ndarray]:
    """Return each task's relative standard deviation of host time, and its group of common error.

    Groups consist of operations whose own figures the table lacks; -1 for none.
    """
    tasks = columns.tasks
    launches = Counter(tasks.op[tasks.has_cause("T4")].tolist())
    std = np.zeros((len(columns.ops) + 1, len(tasks.causes)))  # the last row: of no operation
    group = np.full(len(std), -1)
    for number, op in enumerate(columns.ops):
        costs = host.overheads(op, launches[number])
        std[number] = [max(0.0, costs.std.get(cause, 0.0)) for cause in tasks.causes]
        # By a hash of the name and not by its place in this step, so that the same op errs alike in
        # two steps that are compared.
        if not costs.level.startswith("op"):
            group[number] = zlib.crc32(op.name.encode())
    relative = std[tasks.op, tasks.cause]
    common = np.isin(
        tasks.cause, [n for n, cause in enumerate(tasks.causes) if cause in COMMON_ERROR_CAUSES]
    )
    return relative, np.where(common & (relative > 0.0), group[tasks.op], -1)


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(name.encode()), 0])


class _Normals:
    """Draws of a normal distribution, row by row, with a cache of the first rows.

    Attributes:
        max_rows: number of rows that are cached.
    """

    def __init__(self, name: str, draws: int) -> None:
        self.generator, self.draws = _generator(name), draws
        self.max_rows = max(1, MAX_CELLS // draws)
        self.parts: list[Floats] = []
        self.ends: list[int] = []
        self.lock = Lock()

    def rows(self, first: int, count: int) -> Floats:
        """Return ``count`` cached rows, ``float64[count, draws]``, which must not be modified."""
        self._fill(first + count)
        part_index = bisect_right(self.ends, first)
        chunks = []
        while count > 0:
            offset = first - self.ends[part_index] + len(self.parts[part_index])
            chunks.append(self.parts[part_index][offset : offset + count])
            first, count, part_index = (
                first + len(chunks[-1]),
                count - len(chunks[-1]),
                part_index + 1,
            )
        return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)

    def further_generator(self) -> np.random.Generator:
        """Return a generator of the rows that follow the cached ones."""
        self._fill(self.max_rows)
        return deepcopy(self.generator)

    def _fill(self, end: int) -> None:
        with self.lock:
            row_count = self.ends[-1] if self.ends else 0
            if end > row_count:
                shape = (end - row_count, self.draws)
                self.parts.append(self.generator.standard_normal(shape))
                self.ends.append(end)


class _NormalRows:
    """Rows of ``_Normals`` in order, beyond the cached ones from an own generator."""

    def __init__(self, normals: _Normals) -> None:
        self.normals = normals
        self.next_row = 0

    @cached_property
    def generator(self) -> np.random.Generator:
        """A generator of the rows after the cached ones."""
        return self.normals.further_generator()

    def next_rows(self, count: int) -> Floats:
        """Return the next rows, ``float64[count, draws]``, which must not be modified."""
        cached = max(0, min(count, self.normals.max_rows - self.next_row))
        parts = [self.normals.rows(self.next_row, cached)] if cached else []
        self.next_row += count
        if cached < count:
            parts.append(self.generator.standard_normal((count - cached, self.normals.draws)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


_normals = lru_cache(maxsize=len(OVERHEADS))(_Normals)


def _normal(name: str, draws: int) -> Floats:
    return _generator(name).standard_normal(draws)
