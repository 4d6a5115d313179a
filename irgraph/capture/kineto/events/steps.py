"""Where steps begin and end: by the profiler's marks, or a mark that the user names, or nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from irgraph.capture.kineto.reading.selection import Marks
from irgraph.capture.kineto.reading.trace import EventKind, Integers, KinetoTrace
from irgraph.diagnostics import SourceSpan, fail, suggestion

_MIN_REPEATS = {EventKind.ANNOTATION: 3, EventKind.OP: 8}
"""How often something must come back to be proposed as a mark: operators do by chance, too."""

_MAX_MISSING_SHARE = 0.02
"""Share of a step's launches without device work from which on its figures are not the step's."""


class TraceStep(Struct, frozen=True):
    """One training or inference step.

    Attributes:
        number: as the profiler counts, or from 0.
        start, end: nanoseconds from the start of the trace.
        marked: how it was found: ``ProfilerStep``, the name of its mark, or ``trace``.
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


def find_steps(trace: KinetoTrace, main: int, launch: Integers, marks: Marks) -> list[TraceStep]:
    """Return the steps of a trace; without marks it is one step, device work included.

    Periods are proposed in the health report, never taken: what comes back need not be a step.

    Args:
        trace: the trace.
        main: number of the thread that runs the program.
        launch: by device event, the row of its launch.
        marks: what marks steps.

    Raises:
        IrgraphError: the mark that the user named is not there (exit code 2).
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
    return [
        _check_step(trace, step, *counts)
        for step, counts in zip(steps, _launch_counts(trace, steps, launch), strict=True)
    ]


def _single_step(trace: KinetoTrace) -> list[TraceStep]:
    """Return all of a trace as one step: what its host did, and all work of its devices."""
    rows = (trace.columns["kind"] <= EventKind.RUNTIME) | trace.on_device
    if not rows.any():
        return []
    start = int(trace.columns["start"][rows].min())
    return [TraceStep(0, start, int(trace.end[rows].max()), "trace")]


def _steps_between_marks(
    trace: KinetoTrace, main: int, launch: Integers, name: str
) -> list[TraceStep]:
    """Return a step from each start of what is called so to the next.

    Events of the program's thread count, else those of one other thread. The last one is a step
    where the mark spans its step, as an annotation around a loop's body does: to the end of the
    work that was launched within it. A mark at the beginning of a step leaves its end open.
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
    """Return the annotations or operators of a name on one thread, in order of time."""
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


def _check_step(trace: KinetoTrace, step: TraceStep, missing: int, launches: int) -> TraceStep:
    """Mark a step incomplete where a file that is cut off lacks its end or its device work."""
    if missing > _MAX_MISSING_SHARE * launches:
        detail = f"{missing} of {launches} launches of step {step.number}"
        trace.health.add("K34", missing, detail)
    if "K01" not in trace.health.counts or step.mark == "trace":
        return step
    last_end = min(_last_end(trace, EventKind.OP), _last_end(trace, EventKind.RUNTIME))
    is_recorded = last_end >= step.end - (step.end - step.start) // 20
    return replace(step, complete=is_recorded and missing <= _MAX_MISSING_SHARE * launches)


def _last_end(trace: KinetoTrace, kind: EventKind) -> float:
    """Return how far events of a kind reach, without limit where there are none.

    Calls of the runtime follow the operators in a file, so that a cut can take them alone.
    """
    rows = trace.columns["kind"] == kind
    return float(trace.end[rows].max()) if rows.any() else np.inf


def _launch_counts(
    trace: KinetoTrace, steps: Sequence[TraceStep], launch: Integers
) -> list[tuple[int, int]]:
    """Return for each step how many launches of kernels lack device work, and how many it has."""
    is_launch = np.array(["Launch" in name for name in trace.names], bool)
    calls = is_launch[trace.columns["name"]] & (trace.columns["kind"] == EventKind.RUNTIME)
    calls &= trace.columns["correlation"] > 0
    has_work = np.zeros(len(trace), bool)
    has_work[launch[trace.on_device & (launch >= 0)]] = True
    start = trace.columns["start"]
    edges = np.array([(step.start, step.end) for step in steps], "i8").reshape(-1, 2)
    within = [
        np.diff(np.searchsorted(np.sort(start[rows]), edges), axis=1).ravel().tolist()
        for rows in (calls & ~has_work, calls)
    ]
    return list(zip(*within, strict=True))


def _propose_marks(trace: KinetoTrace, main: int) -> str:
    """Say that the whole trace is one step, and what could mark steps."""
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
    """Return what may mark the start of each iteration, by how often it comes back.

    Those are the two annotations of the program's thread that come back at the steadiest distances,
    for one may come back with every other step; where there are fewer, an operator, if it does not
    come back more than twice as often. Of one count it is the first in time.
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
    """Return by its count the first of the names that come back steadily, the steadiest first."""
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
    """Return the spread of the distances over their median; several an iteration give over 1."""
    gaps = np.diff(np.asarray(starts))
    middle = float(np.median(gaps))
    return float(np.median(np.abs(gaps - middle)) / middle) if middle else np.inf
