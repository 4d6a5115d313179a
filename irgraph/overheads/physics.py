"""Self-checks of host tables: times that no host takes, statistics that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from irgraph.diagnostics.units import TIME, range_error
from irgraph.overheads.format import HostFile, OpEntry, Stat

MAX_US = 1e12
"""Maximum time of a call in microseconds: eleven days."""

LAUNCH_US = (0.1, 2000.0)
"""Shortest and longest mean time of launches of kernels in the driver, wider than a card's range:
traces give 0.4 us, less what profiling takes, and 470 us where few launches load their modules."""

BETWEEN_US = (0.05, 2000.0)
"""Shortest and longest mean time between operations, T1: tables have 4 to 44 us."""

MIN_NO_GRAPH_RATIO = 0.1
"""Smallest time of operations without a graph over their time with one: 0.65 was measured."""

TOLERANCE = 1.1
"""Factor by which statistics may miss their inequalities: files are rounded."""

ROUNDING_US = 1e-3
"""Rounding of quantiles in files."""

MIN_SHARE = 0.25
"""Smallest mean as a share of the median: a mean of times is at least half of their median; this
one leaves out outliers, which quantiles include."""


def range_errors(file: HostFile) -> Iterator[str]:
    """Yield mean times outside of their range; copies may take any time."""
    if not MIN_NO_GRAPH_RATIO <= file.no_graph_ratio <= 1.0:
        yield (
            f"no_graph_ratio is {file.no_graph_ratio:g}: operations take between "
            f"{MIN_NO_GRAPH_RATIO:g} and 1 of their time without a graph"
        )
    if file.t1.mean:
        yield range_error("T1.mean", file.t1.mean, *BETWEEN_US, TIME)
    for kind, stat in file.t4.items():
        if kind == "kernel" or "LaunchKernel" in kind:
            yield range_error(f"T4.{kind}.mean", stat.mean, *LAUNCH_US, TIME)


def impossible_times(file: HostFile) -> Iterator[str]:
    """Yield the names of statistics that are no times."""
    for name, stat in _statistics(file):
        if not all(0 <= value <= MAX_US for value in (stat.mean, stat.std, stat.count)):
            yield name


def contradictions(file: HostFile) -> Iterator[str]:
    """Yield the statistics that no sample has, with the inequality that they violate."""
    for name, stat in _statistics(file):
        reason = _contradiction(stat)
        if reason:
            yield f"{name}: {reason}"


def _contradiction(stat: Stat) -> str:
    """Return the inequality of samples of times that statistics violate, ``""`` if none."""
    quantiles = [stat.quantiles[name] for name in ("p05", "p50", "p95") if name in stat.quantiles]
    if quantiles != sorted(quantiles):
        return "its quantiles decrease"
    median = stat.quantiles.get("p50")
    if median is None or stat.count < 2:
        return ""
    is_low = stat.mean * TOLERANCE < median * MIN_SHARE
    is_high = stat.mean > (median + stat.std) * TOLERANCE + ROUNDING_US
    if is_low or is_high:
        return f"its mean is {stat.mean:,g} us, its median {median:,g} us, its std {stat.std:,g} us"
    return ""


def _statistics(file: HostFile) -> Iterator[tuple[str, Stat]]:
    """Yield all statistics of a table with their names."""
    yield "T1", file.t1
    if file.within is not None:
        yield "within", file.within
    for kind, stat in file.t4.items():
        yield f"T4 of {kind}", stat
    for operation, entry in file.ops.items():
        yield from _entry_statistics(operation, entry)


def _entry_statistics(operation: str, entry: OpEntry) -> Iterator[tuple[str, Stat]]:
    for kind in ("t2", "t3", "t5", "whole"):
        stat = getattr(entry, kind)
        if stat is not None:
            yield f"{kind.replace('t', 'T')} of {operation}", stat
    for shapes, entry_of_shapes in entry.shapes.items():
        yield from _entry_statistics(f"{operation}({shapes})", entry_of_shapes)
