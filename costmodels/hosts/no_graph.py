"""The host times of operations in inference, where autograd records no graph.

A traced step without a backward pass is compared with traced training steps by the time of the
operations that both call. Steps of a shared machine run at different speeds: launches, which are
the same with and without a graph, show these, as they do between machines. Medians of equal calls
count, because means of single steps include interruptions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median

from irgraph.overheads.format import HostFile, OpEntry, Stat
from irgraph.overheads.table import LAUNCH_EXPONENTS

MIN_SHARE = 0.5
"""Minimum share of an inference step's host time in operations that a training step calls, too."""


def no_graph_ratio(files: Iterable[HostFile]) -> float:
    """Return the time of operations without a graph over their time with one.

    It is 1 if no traced step is an inference that has enough in common with a training step.

    Args:
        files: tables of single traced steps.
    """
    steps = list(files)
    training = [file for file in steps if _builds_graph(file)]
    inferences = [file for file in steps if not _builds_graph(file)]
    ratios = [ratio for file in inferences if (ratio := _median_ratio(file, training))]
    return round(math.exp(fmean(math.log(ratio) for ratio in ratios)), 2) if ratios else 1.0


def _builds_graph(file: HostFile) -> bool:
    """Return whether the traced step had a backward pass."""
    return any(name.startswith("autograd.") for name in file.ops)


def _median_ratio(inference: HostFile, training: Sequence[HostFile]) -> float:
    """Return the median, over training steps, of an inference's time over theirs, 0 if none."""
    ratios = [ratio for file in training if (ratio := _time_ratio(inference, file))]
    return median(ratios) if ratios else 0.0


def _time_ratio(inference: HostFile, training: HostFile) -> float:
    """Return the ratio of times at equal speed of launches, 0 if the steps share too little."""
    times = {name: (_count(entry), _typical_time(entry)) for name, entry in inference.ops.items()}
    common = {name: count for name, (count, _) in times.items() if name in training.ops}
    time = sum(count * times[name][1] for name, count in common.items())
    if time < MIN_SHARE * sum(count * time for count, time in times.values()):
        return 0.0
    other = sum(count * _typical_time(training.ops[name]) for name, count in common.items())
    launch_ratio = inference.t4["kernel"].mean / training.t4["kernel"].mean
    return time / other / math.pow(launch_ratio, LAUNCH_EXPONENTS["T2"])


def _count(entry: OpEntry) -> int:
    stat = entry.t2 or entry.whole
    return stat.count if stat is not None else 0


def _typical_time(entry: OpEntry) -> float:
    """Return the microseconds of a typical call, without its launches.

    T2, T3 and T5 count together: casts of operands move time from the first to the last.
    """
    count = _count(entry)
    stats = [stat for stat in (entry.t2, entry.t3, entry.t5, entry.whole) if stat is not None]
    return sum(_typical(stat) * stat.count for stat in stats) / count if count else 0.0


def _typical(stat: Stat) -> float:
    return stat.quantiles.get("p50", stat.mean)
