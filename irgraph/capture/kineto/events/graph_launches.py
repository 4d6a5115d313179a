"""Kernels that are missing from one launch of a CUDA graph, by other launches of the same graph.

Traces do not name graphs. Steps of a program launch the same graphs in the same order: the n-th
graph launches of all steps are compared. Launches of different graphs are distinguished by
their kernels, so that a program that selects a graph by its batch has no findings.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from irgraph.capture.kineto.reading.trace import EventKind, Integers, KinetoTrace

Kernels = Counter[int]
"""Number of kernels by name."""


def missing_graph_kernels(
    trace: KinetoTrace, edges: Integers, launch: Integers
) -> list[tuple[int, float]]:
    """Return for each step the number of kernels that its graph launches lack, and their time.

    The time of a kernel in microseconds is the mean of its name's kernels in graph launches.

    Args:
        trace: the trace.
        edges: start and end of each step, nanoseconds, ``int64[steps, 2]``.
        launch: by device event, the row of its launch.
    """
    calls = _graph_launches(trace)
    if not len(calls) or len(edges) < 2:
        return [(0, 0.0)] * len(edges)
    work = np.flatnonzero(trace.on_device & np.isin(launch, calls))
    mean_times = _mean_times(trace, work)
    kernels = _kernels_by_launch(trace, launch, work)
    start = trace.columns["start"][calls]
    calls = calls[np.argsort(start, kind="stable")]
    start = trace.columns["start"][calls]
    steps = [calls[(start >= begin) & (start < end)].tolist() for begin, end in edges]
    missing: list[Kernels] = [Counter() for _ in steps]
    for position in range(max(map(len, steps))):
        rows = {index: step[position] for index, step in enumerate(steps) if position < len(step)}
        launched = {index: kernels[row] for index, row in rows.items()}
        for index, absent in _absent_kernels(launched).items():
            missing[index] += absent
    times = [sum(mean_times[name] * count for name, count in m.items()) for m in missing]
    return [(m.total(), time) for m, time in zip(missing, times, strict=True)]


def _absent_kernels(launches: dict[int, Kernels]) -> dict[int, Kernels]:
    """Return the kernels that each launch lacks, if all are of the same graph.

    Launches of a graph have the same names of kernels, or are part of the largest one.
    """
    largest = max(launches.values(), key=Counter.total)
    result = {}
    same_names = [kernels for kernels in launches.values() if kernels.keys() == largest.keys()]
    union = _union(same_names)
    for step, kernels in launches.items():
        reference = union if kernels.keys() == largest.keys() else largest
        if kernels and kernels <= reference:  # without any, the launch itself is counted
            result[step] = reference - kernels
    return result


def _union(counters: Iterable[Kernels]) -> Kernels:
    result: Kernels = Counter()
    for kernels in counters:
        result |= kernels
    return result


def _graph_launches(trace: KinetoTrace) -> Integers:
    """Return the rows of runtime calls that launch graphs."""
    names = np.array(["GraphLaunch" in name for name in trace.names], bool)
    calls = names[trace.columns["name"]] & (trace.columns["kind"] == EventKind.RUNTIME)
    result: Integers = np.flatnonzero(calls & (trace.columns["correlation"] > 0))
    return result


def _kernels_by_launch(
    trace: KinetoTrace, launch: Integers, work: Integers
) -> defaultdict[int, Kernels]:
    pairs = np.stack([launch[work], trace.columns["name"][work]], axis=1)
    distinct, counts = np.unique(pairs, axis=0, return_counts=True)
    result: defaultdict[int, Kernels] = defaultdict(Counter)
    for (row, name), count in zip(distinct.tolist(), counts.tolist(), strict=True):
        result[row][name] = count
    return result


def _mean_times(trace: KinetoTrace, work: Integers) -> dict[int, float]:
    """Return the mean microseconds of kernels by name."""
    names, groups = np.unique(trace.columns["name"][work], return_inverse=True)
    sums = np.bincount(groups, trace.columns["duration"][work] / 1000, len(names))
    counts = np.bincount(groups, minlength=len(names))
    return dict(zip(names.tolist(), (sums / counts).tolist(), strict=True))
