"""Where steps begin and end: the profiler's own marks, or what repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from irgraph.capture.kineto.reading.trace import Integers, Kind, KinetoTrace

_REPEATS = {Kind.ANNOTATION: 3, Kind.OP: 8}
"""How often something must come back to mark steps: operators do by chance, too."""


@dataclass(frozen=True, slots=True)
class Step:
    """One training or inference step.

    Attributes:
        number: as the profiler counts, or from 0.
        start, end: nanoseconds from the start of the trace.
        marked: how it was found: ``ProfilerStep``, the name of what repeats, or ``trace``.
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


def find_steps(trace: KinetoTrace, main: int) -> list[Step]:
    """Return the steps of a trace: marked ones, periods of what repeats, or all as one step."""
    marked = trace.steps()
    if marked:
        return _marked(trace, marked)
    repeating = _repeating(trace, main)
    if repeating is not None:
        name, starts = repeating
        pairs = pairwise(starts)
        return [Step(i, a, b, trace.names[name]) for i, (a, b) in enumerate(pairs)]
    host = trace.columns["kind"] <= Kind.RUNTIME
    if not host.any():
        return []
    start = int(trace.columns["start"][host].min())
    return [Step(0, start, int(trace.end[host].max()), "trace")]


def _marked(trace: KinetoTrace, rows: dict[int, int]) -> list[Step]:
    """Return marked steps; the last one is incomplete where the file is cut off in it."""
    start, end = trace.columns["start"], trace.end
    steps = [Step(n, int(start[row]), int(end[row])) for n, row in rows.items()]
    steps.sort(key=lambda step: step.start)
    if "K01" not in trace.health.counts or not steps:
        return steps
    return [_seen(trace, step) for step in steps]


def _seen(trace: KinetoTrace, step: Step) -> Step:
    """Mark a step incomplete where the trace ends well before it does."""
    host = trace.columns["kind"] == Kind.OP
    last = int(trace.end[host].max(initial=0))
    complete = last >= step.end - (step.end - step.start) // 20
    return Step(step.number, step.start, step.end, step.marked, complete)


def _repeating(trace: KinetoTrace, main: int) -> tuple[int, list[int]] | None:
    """Return what marks the start of each iteration, and those times in nanoseconds.

    An annotation of the program's thread, else an operator, that comes back at the steadiest
    distance; of several with one count the first in time.
    """
    for kind in (Kind.ANNOTATION, Kind.OP):
        here = np.flatnonzero((trace.columns["kind"] == kind) & (trace.columns["thread"] == main))
        names = trace.columns["name"][here]
        found = _steadiest(names, trace.columns["start"][here], _REPEATS[kind])
        if found is not None:
            rows = here[names == found]
            return found, trace.columns["start"][rows].tolist()
    return None


def _steadiest(names: Integers, starts: Integers, least: int) -> int | None:
    unique, first, counts = np.unique(names, return_index=True, return_counts=True)
    often = counts >= least
    if not often.any():
        return None
    candidates = sorted(zip(first[often].tolist(), unique[often].tolist(), strict=True))
    scores = [(round(_unsteadiness(starts[names == n]), 1), f, n) for f, n in candidates[:400]]
    best = min(scores)
    return int(best[2]) if best[0] <= 0.5 else None


def _unsteadiness(starts: Sequence[int] | Integers) -> float:
    """Return the spread of the distances over their median; several an iteration give over 1."""
    gaps = np.diff(np.asarray(starts))
    middle = float(np.median(gaps))
    return float(np.median(np.abs(gaps - middle)) / middle) if middle else np.inf
