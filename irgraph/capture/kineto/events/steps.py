"""Where steps begin and end: by the profiler's marks, or a mark that the user names, or nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from irgraph.capture.kineto.reading.selection import Marks
from irgraph.capture.kineto.reading.trace import Integers, Kind, KinetoTrace
from irgraph.diagnostics import SourceSpan, fail, suggestion

_REPEATS = {Kind.ANNOTATION: 3, Kind.OP: 8}
"""How often something must come back to be proposed as a mark: operators do by chance, too."""

_LACKING = 0.02
"""Share of a step's launches without device work from which on its figures are not the step's."""


class Step(Struct, frozen=True):
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
    marked: str = "ProfilerStep"
    complete: bool = True

    @property
    def time(self) -> float:
        """Length in microseconds."""
        return (self.end - self.start) / 1000


def find_steps(trace: KinetoTrace, main: int, launch: Integers, marks: Marks) -> list[Step]:
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
    marked = {} if marks.whole or marks.name else trace.steps()
    if marked:
        found = _marked(trace, marked)
    elif marks.name:
        found = _named(trace, main, launch, marks.name)
    else:
        found = _whole(trace)
        if not marks.whole:
            trace.health.add("K06", detail=_proposal(trace, main))
    return [
        _seen(trace, step, *of)
        for step, of in zip(found, _lacking(trace, found, launch), strict=True)
    ]


def _whole(trace: KinetoTrace) -> list[Step]:
    """Return all of a trace as one step: what its host did, and all work of its devices."""
    rows = (trace.columns["kind"] <= Kind.RUNTIME) | trace.on_device
    if not rows.any():
        return []
    start = int(trace.columns["start"][rows].min())
    return [Step(0, start, int(trace.end[rows].max()), "trace")]


def _named(trace: KinetoTrace, main: int, launch: Integers, name: str) -> list[Step]:
    """Return a step from each start of what is called so to the next.

    Events of the program's thread count, else those of one other thread. The last one is a step
    where the mark spans its step, as an annotation around a loop's body does: to the end of the
    work that was launched within it. A mark at the beginning of a step leaves its end open.
    """
    rows = _called(trace, main, name)
    start, ends = trace.columns["start"], trace.end
    starts = start[rows].tolist()
    found = [Step(i, a, b, name) for i, (a, b) in enumerate(pairwise(starts))]
    spans = float(np.median(ends[rows] - start[rows]))
    if len(rows) > 1 and spans < 0.5 * float(np.median(np.diff(start[rows]))):
        return found
    end = int(ends[rows[-1]])
    work = trace.on_device & (launch >= 0)
    work &= (start[launch] >= starts[-1]) & (start[launch] < end)
    return [*found, Step(len(found), starts[-1], int(ends[work].max(initial=end)), name)]


def _called(trace: KinetoTrace, main: int, name: str) -> Integers:
    """Return the annotations or operators of a name on one thread, in order of time."""
    kinds = np.isin(trace.columns["kind"], (Kind.ANNOTATION, Kind.OP))
    number = trace.names.index(name) if name in trace.names else -1
    rows = np.flatnonzero(kinds & (trace.columns["name"] == number))
    if not len(rows):
        held = {trace.names[n] for n in np.unique(trace.columns["name"][kinds]).tolist()}
        message = f"--step-mark: nothing is called {name!r}{suggestion(name, held)}"
        raise fail(message, SourceSpan(trace.source), exit_code=2)
    threads = trace.columns["thread"][rows]
    thread = main if (threads == main).any() else int(np.bincount(threads).argmax())
    chosen: Integers = rows[threads == thread]
    return chosen


def _marked(trace: KinetoTrace, rows: dict[int, int]) -> list[Step]:
    """Return the profiler's steps in order of time."""
    start, end = trace.columns["start"], trace.end
    steps = [Step(n, int(start[row]), int(end[row])) for n, row in rows.items()]
    return sorted(steps, key=lambda step: step.start)


def _seen(trace: KinetoTrace, step: Step, lacking: int, launches: int) -> Step:
    """Mark a step incomplete where a file that is cut off lacks its end or its device work."""
    if lacking > _LACKING * launches:
        detail = f"{lacking} of {launches} launches of step {step.number}"
        trace.health.add("K34", lacking, detail)
    if "K01" not in trace.health.counts or step.marked == "trace":
        return step
    reached = min(_last(trace, Kind.OP), _last(trace, Kind.RUNTIME))
    ended = reached >= step.end - (step.end - step.start) // 20
    return replace(step, complete=ended and lacking <= _LACKING * launches)


def _last(trace: KinetoTrace, kind: Kind) -> float:
    """Return how far events of a kind reach, without limit where there are none.

    Calls of the runtime follow the operators in a file, so that a cut can take them alone.
    """
    rows = trace.columns["kind"] == kind
    return float(trace.end[rows].max()) if rows.any() else np.inf


def _lacking(trace: KinetoTrace, steps: Sequence[Step], launch: Integers) -> list[tuple[int, int]]:
    """Return for each step how many launches of kernels lack device work, and how many it has."""
    named = np.array(["Launch" in name for name in trace.names], bool)
    calls = named[trace.columns["name"]] & (trace.columns["kind"] == Kind.RUNTIME)
    calls &= trace.columns["correlation"] > 0
    known = np.zeros(len(trace), bool)
    known[launch[trace.on_device & (launch >= 0)]] = True
    start = trace.columns["start"]
    edges = np.array([(step.start, step.end) for step in steps], "i8").reshape(-1, 2)
    within = [
        np.diff(np.searchsorted(np.sort(start[rows]), edges), axis=1).ravel().tolist()
        for rows in (calls & ~known, calls)
    ]
    return list(zip(*within, strict=True))


def _proposal(trace: KinetoTrace, main: int) -> str:
    """Say that the whole trace is one step, and what could mark steps."""
    found = _repeating(trace, main)
    taken = "the whole trace is taken as one step"
    if not found:
        return taken
    marks = " or ".join(f"{name!r} (comes back {count} times)" for count, name in found.items())
    which = ": take what comes back once a step" if len(found) > 1 else ""
    return f"{taken}; --step-mark {marks} would divide it{which}"


def _repeating(trace: KinetoTrace, main: int) -> dict[int, str]:
    """Return what may mark the start of each iteration, by how often it comes back.

    Those are the two annotations of the program's thread that come back at the steadiest distances,
    for one may come back with every other step; where there are fewer, an operator, if it does not
    come back more than twice as often. Of one count it is the first in time.
    """
    found: dict[int, str] = {}
    for kind in (Kind.ANNOTATION, Kind.OP):
        here = np.flatnonzero((trace.columns["kind"] == kind) & (trace.columns["thread"] == main))
        names = trace.columns["name"][here]
        most = 2 * max(found) if found else len(names)
        steady = _steadiest(names, trace.columns["start"][here], _REPEATS[kind])
        new = {n: trace.names[name] for n, name in steady.items() if n <= most and n not in found}
        found |= dict(list(new.items())[: 2 if kind == Kind.ANNOTATION else 1])
    return dict(list(found.items())[:2])


def _steadiest(names: Integers, starts: Integers, least: int) -> dict[int, int]:
    """Return by its count the first of the names that come back steadily, the steadiest first."""
    unique, first, counts = np.unique(names, return_index=True, return_counts=True)
    often = counts >= least
    candidates = sorted(zip(first[often].tolist(), unique[often].tolist(), strict=True))
    scores = [(round(_unsteadiness(starts[names == n]), 1), f, n) for f, n in candidates[:400]]
    found: dict[int, int] = {}
    for score, _, name in sorted(scores):
        if score <= 0.5:
            found.setdefault(int((names == name).sum()), name)
    return found


def _unsteadiness(starts: Sequence[int] | Integers) -> float:
    """Return the spread of the distances over their median; several an iteration give over 1."""
    gaps = np.diff(np.asarray(starts))
    middle = float(np.median(gaps))
    return float(np.median(np.abs(gaps - middle)) / middle) if middle else np.inf
