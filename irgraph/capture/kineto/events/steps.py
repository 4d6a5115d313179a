"""Finds the steps of a trace by the profiler's marks or a named mark, or treats it as one step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from irgraph.capture.kineto.events.missing_work import MissingWork, missing_work
from irgraph.capture.kineto.reading.selection import Marks
from irgraph.capture.kineto.reading.trace import EventKind, Integers, KinetoTrace
from irgraph.diagnostics import SourceSpan, fail, suggestion

_MIN_REPEATS = {EventKind.ANNOTATION: 3, EventKind.OP: 8}
"""Minimum occurrences of a name to propose it as a mark; operators also recur by chance."""


class TraceStep(Struct, frozen=True):
    """One training or inference step.

    Attributes:
        number: number from the profiler, or position from 0.
        start, end: nanoseconds from the start of the trace.
        mark: ``ProfilerStep``, the name of the mark that delimits it, or ``trace``.
        complete: whether it was recorded to its end.
    """

    number: int
    start: int
    end: int
    mark: str = "ProfilerStep"
    complete: bool = True

    @property
    def time(self) -> float:
        """Length in microseconds."""
        return (self.end - self.start) / 1000


def find_steps(
    trace: KinetoTrace, main: int, launch: Integers, op: Integers, marks: Marks
) -> list[TraceStep]:
    """Return the steps of a trace; a trace without marks is one step, device work included.

    Periodic names are only proposed in the health report, as a period need not be a step.

    Args:
        trace: the trace.
        main: number of the thread that runs the program.
        launch: by device event, the row of its launch.
        op: the innermost operator at or around each event, -1 for none.
        marks: marks of the steps.

    Raises:
        IrgraphError: the mark that the user named is not in the trace (exit code 2).
    """
    rows_by_number = {} if marks.whole_trace or marks.name else trace.steps()
    if rows_by_number:
        steps = _profiler_steps(trace, rows_by_number)
    elif marks.name:
        steps = _steps_between_marks(trace, main, launch, marks.name)
    else:
        steps = _single_step(trace)
        if not marks.whole_trace:
            trace.health.add("K06", detail=_propose_marks(trace, main))
    edges = np.array([(step.start, step.end) for step in steps], "i8").reshape(-1, 2)
    pairs = zip(steps, missing_work(trace, edges, launch, op), strict=True)
    return [_check_step(trace, step, missing) for step, missing in pairs]


def _single_step(trace: KinetoTrace) -> list[TraceStep]:
    """Return the whole trace as one step that spans all host events and device work."""
    rows = (trace.columns["kind"] <= EventKind.RUNTIME) | trace.on_device
    if not rows.any():
        return []
    start = int(trace.columns["start"][rows].min())
    return [TraceStep(0, start, int(trace.end[rows].max()), "trace")]


def _steps_between_marks(
    trace: KinetoTrace, main: int, launch: Integers, name: str
) -> list[TraceStep]:
    """Return the steps between the starts of events with a name.

    Events of the program's thread are used, else events of one other thread. The last event is
    also a step if the mark spans its step, as an annotation around a loop's body does; it extends
    to the end of the work that was launched in it. A mark at the start of a step leaves the end of
    the last one open.
    """
    rows = _mark_rows(trace, main, name)
    start, ends = trace.columns["start"], trace.end
    starts = start[rows].tolist()
    steps = [TraceStep(i, a, b, name) for i, (a, b) in enumerate(pairwise(starts))]
    spans = float(np.median(ends[rows] - start[rows]))
    if len(rows) > 1 and spans < 0.5 * float(np.median(np.diff(start[rows]))):
        return steps
    end = int(ends[rows[-1]])
    work = trace.on_device & (launch >= 0)
    work &= (start[launch] >= starts[-1]) & (start[launch] < end)
    return [*steps, TraceStep(len(steps), starts[-1], int(ends[work].max(initial=end)), name)]


def _mark_rows(trace: KinetoTrace, main: int, name: str) -> Integers:
    """Return the annotations or operators with a name on one thread, in order of time."""
    kinds = np.isin(trace.columns["kind"], (EventKind.ANNOTATION, EventKind.OP))
    number = trace.names.index(name) if name in trace.names else -1
    rows = np.flatnonzero(kinds & (trace.columns["name"] == number))
    if not len(rows):
        names = {trace.names[n] for n in np.unique(trace.columns["name"][kinds]).tolist()}
        message = f"--step-mark: nothing is called {name!r}{suggestion(name, names)}"
        raise fail(message, SourceSpan(trace.source), exit_code=2)
    threads = trace.columns["thread"][rows]
    thread = main if (threads == main).any() else int(np.bincount(threads).argmax())
    thread_rows: Integers = rows[threads == thread]
    return thread_rows


def _profiler_steps(trace: KinetoTrace, rows: dict[int, int]) -> list[TraceStep]:
    """Return the profiler's steps in order of time."""
    start, end = trace.columns["start"], trace.end
    steps = [TraceStep(n, int(start[row]), int(end[row])) for n, row in rows.items()]
    return sorted(steps, key=lambda step: step.start)


def _check_step(trace: KinetoTrace, step: TraceStep, missing: MissingWork) -> TraceStep:
    """Return a step, marked incomplete if a truncated file lacks its end or its device work."""
    count = missing.count + missing.graph_kernels
    trace.health.add("K34", count, missing.describe(step.number))
    if "K01" not in trace.health.counts or step.mark == "trace":
        return step
    last_end = min(_last_end(trace, EventKind.OP), _last_end(trace, EventKind.RUNTIME))
    is_recorded = last_end >= step.end - (step.end - step.start) // 20
    return replace(step, complete=is_recorded and missing.is_small)


def _last_end(trace: KinetoTrace, kind: EventKind) -> float:
    """Return the last end of events of a kind, infinity if there are none.

    Runtime calls follow the operators in a file, so truncation can remove only the runtime calls.
    """
    rows = trace.columns["kind"] == kind
    return float(trace.end[rows].max()) if rows.any() else np.inf


def _propose_marks(trace: KinetoTrace, main: int) -> str:
    """Return the note that the whole trace is one step, with names that could mark steps."""
    candidates = _repeating_names(trace, main)
    summary = "the whole trace is taken as one step"
    if not candidates:
        return summary
    marks = " or ".join(
        f"{name!r} (comes back {count} times)" for count, name in candidates.items()
    )
    which = ": take what comes back once a step" if len(candidates) > 1 else ""
    return f"{summary}; --step-mark {marks} would divide it{which}"


def _repeating_names(trace: KinetoTrace, main: int) -> dict[int, str]:
    """Return names that may mark the start of each iteration, by their number of occurrences.

    These are the two annotations of the program's thread that recur at the most regular intervals,
    as one of them may recur only every other step; if there are fewer, an operator is added if it
    does not recur more than twice as often. Of names with the same count the first in time is used.
    """
    name_by_count: dict[int, str] = {}
    for kind in (EventKind.ANNOTATION, EventKind.OP):
        rows = np.flatnonzero((trace.columns["kind"] == kind) & (trace.columns["thread"] == main))
        names = trace.columns["name"][rows]
        max_count = 2 * max(name_by_count) if name_by_count else len(names)
        steady = _steadiest_names(names, trace.columns["start"][rows], _MIN_REPEATS[kind])
        new = {
            n: trace.names[name]
            for n, name in steady.items()
            if n <= max_count and n not in name_by_count
        }
        name_by_count |= dict(list(new.items())[: 2 if kind == EventKind.ANNOTATION else 1])
    return dict(list(name_by_count.items())[:2])


def _steadiest_names(names: Integers, starts: Integers, min_count: int) -> dict[int, int]:
    """Return the names that recur at regular intervals by their count, the most regular first.

    Of names with the same count, the most regular and earliest is returned.
    """
    unique, first, counts = np.unique(names, return_index=True, return_counts=True)
    is_frequent = counts >= min_count
    candidates = sorted(zip(first[is_frequent].tolist(), unique[is_frequent].tolist(), strict=True))
    scores = [(round(_unsteadiness(starts[names == n]), 1), f, n) for f, n in candidates[:400]]
    name_by_count: dict[int, int] = {}
    for score, _, name in sorted(scores):
        if score <= 0.5:
            name_by_count.setdefault(int((names == name).sum()), name)
    return name_by_count


def _unsteadiness(starts: Sequence[int] | Integers) -> float:
    """Return the median absolute deviation of intervals over their median.

    Several occurrences per iteration give over 1.
    """
    gaps = np.diff(np.asarray(starts))
    middle = float(np.median(gaps))
    return float(np.median(np.abs(gaps - middle)) / middle) if middle else np.inf
