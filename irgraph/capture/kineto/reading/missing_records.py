"""Detects missing records: gaps in numbers, and recorded time without a record."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from irgraph.capture.kineto.reading.trace import Array, EventKind, Integers, KinetoTrace

_BLOCK = 512
"""Number of record function ids in a block assigned to a thread; the first block starts at 1."""

_MIN_CONSECUTIVE_SHARE = 0.9
"""Minimum share of consecutive ids for which the ids are assumed to number the records."""


def report_missing_records(trace: KinetoTrace, indices: Sequence[Array]) -> None:
    """Count the records of the host that the profiler numbered but that are not in the file.

    Args:
        trace: the trace, to whose health report the count is added.
        indices: ``Ev Idx`` of all events that have one: torch numbers records consecutively from
            0. Traces from before torch 1.13 have none; their record function ids are used instead,
            which are assigned to threads in blocks.
    """
    if indices:
        holes = _holes(_distinct(np.concatenate(indices)), -1)
    else:
        calls = np.isin(trace.columns["kind"], (EventKind.OP, EventKind.ANNOTATION))
        ids = _distinct(trace.columns["external"][calls])
        holes = _holes(ids[ids > 0], 0)
        if len(holes) > (1 - _MIN_CONSECUTIVE_SHARE) * len(ids):
            return
        # a thread leaves the rest of its block unused, and its next block begins anywhere
        holes = holes[holes[:, 1] % _BLOCK != 1]
    count = int((holes[:, 1] - holes[:, 0] - 1).sum())
    trace.health.add("K36", count, _describe_holes(holes))


def _distinct(numbers: Integers) -> Integers:
    """Return distinct numbers in order; most are in order already."""
    ordered = np.sort(numbers, kind="stable")
    result: Integers = ordered[np.append([True], ordered[1:] != ordered[:-1])[: len(ordered)]]
    return result


def _holes(numbers: Integers, before: int) -> Integers:
    """Return the pairs of neighbouring numbers between which numbers are missing."""
    steps = np.diff(numbers, prepend=before)
    positions = np.flatnonzero(steps > 1)
    return np.stack([numbers[positions] - steps[positions], numbers[positions]], axis=1)


def _describe_holes(holes: Integers) -> str:
    longest = holes[np.argsort(holes[:, 0] - holes[:, 1], kind="stable")][:1].tolist()
    text = ", ".join(f"{first + 1} to {end - 1}" for first, end in longest)
    return f"numbers {text}" + (f" and {len(holes) - 1} more stretches" if len(holes) > 1 else "")


MIN_SILENCE_US = 1000
"""Minimum microseconds of a reported silence: the profiler itself takes up to 518 to stop (64
published traces)."""


def report_silence(
    trace: KinetoTrace, typical: float, last: int, *, marked: bool, count: int
) -> None:
    """Report a recording that continues without a host event for as long as a step.

    The profiler records the span of the recording, which ends about 30 us after the last event.
    What follows a single marked step is no part of it, and need not be a step.

    Args:
        trace: the trace, to whose health report the finding is added.
        typical: microseconds of a typical step, or of the trace if it is one step.
        last: nanoseconds at which the last step ends.
        marked: whether steps are marked. If so, half a step is reported; if not, 1 % of the trace
            at its end, unless an earlier pause of the host is as long.
        count: number of steps.
    """
    if marked and count == 1:
        return
    spans = np.array([name.startswith("PyTorch Profiler (") for name in trace.names], bool)
    span = np.flatnonzero(spans[trace.columns["name"]] & (trace.columns["kind"] == EventKind.OTHER))
    host = np.flatnonzero(trace.columns["kind"] <= EventKind.RUNTIME)
    if not len(span) or not len(host):
        return
    last_ends = np.maximum.accumulate(trace.end[host])
    next_starts = np.append(trace.columns["start"][host][1:], trace.end[span].max())
    pauses = (next_starts - last_ends) / 1000
    pause = float(pauses[last_ends >= last].max(initial=0) if marked else pauses[-1])
    usual = typical / 2 if marked else max(typical / 100, pauses[:-1].max(initial=0))
    if pause > max(usual, MIN_SILENCE_US):
        trace.health.add("K37", round(pause), "steps are lost there, or the program did nothing")
