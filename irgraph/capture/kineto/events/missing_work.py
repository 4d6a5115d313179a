"""Device work that is missing although its launch is in the file, and the time that it would take.

The time of missing work is the mean over the work of other launches: by the same function in
operators of the same name, or else by the same function. Of a launch of a graph, single kernels may
be missing: see ``graph_launches``.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from irgraph.capture.kineto.events.graph_launches import missing_graph_kernels
from irgraph.capture.kineto.reading.trace import Array, EventKind, Integers, KinetoTrace

_MAX_SHARE = 0.02
"""Maximum share of a step's device time that may be missing for its figures to be usable."""


class MissingWork(Struct, frozen=True):
    """Missing device work of a step: of launches without any, and of graphs with a part of it.

    Attributes:
        count: number of launches without device work.
        launches: number of all launches of the step.
        graph_kernels: number of kernels that graph launches lack.
        time: microseconds that the missing work would take.
        recorded: microseconds of the device work in the file.
    """

    count: int
    launches: int
    graph_kernels: int
    time: float
    recorded: float

    @property
    def is_small(self) -> bool:
        """Whether the figures of the step are usable: by time, and by the number of launches."""
        total = self.time + self.recorded
        return self.time <= _MAX_SHARE * total and self.count <= _MAX_SHARE * self.launches

    def describe(self, step: int) -> str:
        """Return the finding as text."""
        subjects = [f"{self.count} of {self.launches} launches"] if self.count else []
        if self.graph_kernels:
            subjects.append(f"{self.graph_kernels} kernels of graph launches")
        return (
            f"{' and '.join(subjects)} of step {step}, of about {self.time:.0f} us"
            f" of device time by similar launches; {self.recorded:.0f} us are in the file"
        )


def missing_work(
    trace: KinetoTrace, edges: Integers, launch: Integers, op: Integers
) -> list[MissingWork]:
    """Return the missing work of each step.

    Launches of kernels have work. Copies may have none, so that a copy counts only if others by the
    same function in operators of that name have some.

    Args:
        trace: the trace.
        edges: start and end of each step, nanoseconds, ``int64[steps, 2]``.
        launch: by device event, the row of its launch.
        op: the innermost operator at or around each event, -1 for none.
    """
    calls = np.flatnonzero(_launch_calls(trace))
    work = np.flatnonzero(trace.on_device & (launch >= 0))
    time = np.zeros(len(trace))
    np.add.at(time, launch[work], trace.columns["duration"][work] / 1000)
    has_work = np.zeros(len(trace), bool)
    has_work[launch[work]] = True
    names = trace.columns["name"]
    operators = np.where(op[calls] >= 0, names[op[calls]], -1)
    keys = np.stack([names[calls], operators], axis=1)
    by_operator = _mean_times(keys, time[calls], has_work[calls])
    by_function = _mean_times(keys[:, :1], time[calls], has_work[calls])
    estimates = np.where(np.isnan(by_operator), by_function, by_operator)
    is_kernel = _has_word(trace, "Launch")[names[calls]]
    missing = ~has_work[calls] & (is_kernel | ~np.isnan(by_operator))
    lengths = np.nan_to_num(np.where(missing, estimates, 0.0))
    start = trace.columns["start"][calls]
    windows = [(start >= begin) & (start < end) for begin, end in edges]
    in_graphs = missing_graph_kernels(trace, edges, launch)
    return [
        MissingWork(
            int(missing[inside].sum()),
            int(is_kernel[inside].sum()),
            graph_kernels,
            float(lengths[inside].sum()) + graph_time,
            float(time[calls[inside]].sum()),
        )
        for inside, (graph_kernels, graph_time) in zip(windows, in_graphs, strict=True)
    ]


def _launch_calls(trace: KinetoTrace) -> Array:
    """Return which events are runtime calls that launch kernels or copies, by a correlation."""
    launches = _has_word(trace, "Launch") | _has_word(trace, "MemcpyAsync")
    calls = launches[trace.columns["name"]] & (trace.columns["kind"] == EventKind.RUNTIME)
    result: Array = calls & (trace.columns["correlation"] > 0)
    return result


def _has_word(trace: KinetoTrace, word: str) -> Array:
    return np.array([word in name for name in trace.names], bool)


def _mean_times(keys: Integers, time: Array, has_work: Array) -> Array:
    """Return for each launch the mean time of launches with work of the same key, else NaN."""
    _, groups = np.unique(keys, axis=0, return_inverse=True)
    groups = groups.ravel()
    counts = np.bincount(groups[has_work], minlength=int(groups.max(initial=0)) + 1)
    sums = np.bincount(groups[has_work], time[has_work], len(counts))
    means = np.full(len(counts), np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    result: Array = means[groups]
    return result
